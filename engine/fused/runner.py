"""Runs batches on a device, slot by slot: picks the shape, packs, collects rows. Knows no tickets, threads or model.

A device has slots, each with room for one batch on its way there and back. It knows neither what is computed nor who
waits for it. The CPU is one here, for checks (it is slow); a GPU is in cuda_device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.model.ops import RaggedRows
from engine.fused.packing import ROWS_OF_SEQUENCES, Packer, Shape, Shapes
from engine.machine.failures import engine_error
from engine.rows.query_table import QueryTable
from engine.rows.with_numpy import largest_of_each_id
from engine.types import Batch, EngineError, EngineErrorKind, OutputKind, Results, Rows

DeviceRows = Tensor | RaggedRows
# A packed block on the device (int32) and its shape -> rows by output kind, padding included: one a sequence [B, D] for
# ROWS_OF_SEQUENCES, SPARSE as ragged rows or as a weight of each token [T, 1], else one a token [T, D]; in any floating
# dtype. It never synchronises with the host.
Compute = Callable[[Tensor, Shape], dict[OutputKind, DeviceRows]]


@dataclass(frozen=True, slots=True)
class NumRows:
    """How many of a batch's rows are no padding."""

    num_seqs: int
    num_tokens: int

    def own(self, kind: OutputKind, rows: DeviceRows) -> DeviceRows:
        """The rows without those of padding, as views."""
        if isinstance(rows, RaggedRows):
            return RaggedRows(rows.counts[: self.num_seqs], rows.entries)
        return rows[: self.num_seqs if kind in ROWS_OF_SEQUENCES else self.num_tokens]


class Device(Protocol):
    """Computes batches in slots. One thread at a time calls `start`, and one `finish`, perhaps at the same time."""

    def block(self, slot: int) -> NDArray[np.int32]:
        """The host's block for the slot's next batch. Write it only before `start`, and again after `finish`."""

    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        """Start to compute the block, after the batches started before. Does not wait."""

    def finish(self, slot: int) -> Results:
        """Wait for the batch in this slot, not for later ones. The caller owns the rows; those of tokens are without
        offsets. Raises MemoryError for more entries of ragged rows than there is room for."""

    def settle(self) -> None:
        """After `start` has raised: wait until no block is in use, and release unused memory."""


class HostDevice:
    """See Device."""

    def __init__(self, compute: Compute, *, block_size: int, num_slots: int, num_threads: int) -> None:
        """block_size: numbers."""
        self._compute = compute
        self._num_threads = num_threads
        self._blocks = [np.zeros(block_size, np.int32) for _ in range(num_slots)]
        self._started: dict[int, tuple[Shape, NumRows]] = {}  # by slot

    def block(self, slot: int) -> NDArray[np.int32]:
        return self._blocks[slot]

    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        self._started[slot] = shape, num_rows

    @torch.inference_mode()
    def finish(self, slot: int) -> Results:
        torch.set_num_threads(self._num_threads)  # for the calling thread only
        shape, num_rows = self._started.pop(slot)
        rows = self._compute(torch.from_numpy(self._blocks[slot]), shape)
        return {kind: self._host_rows(num_rows.own(kind, part)) for kind, part in rows.items()}

    @staticmethod
    def _host_rows(rows: DeviceRows) -> Rows:
        if isinstance(rows, Tensor):
            return Rows(rows.to(torch.float32, copy=True).numpy())
        offsets = offsets_of(rows.counts.numpy(), room=len(rows.entries))
        return Rows(rows.entries[: offsets[-1]].numpy(), offsets)

    def settle(self) -> None:
        """See Device."""


def offsets_of(counts: NDArray[np.int32], *, room: int) -> NDArray[np.int32]:
    """The bounds [B + 1] of ragged rows with these numbers of entries [B].

    Raises MemoryError if the device had no room for all of them. The batch is then cut in halves, as whenever memory
    is short. That comes to an end, since the entries of one sequence always fit.
    """
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    if offsets[-1] > room:
        raise MemoryError(f"{offsets[-1]} entries of sparse rows, and room for {room}")
    return offsets.astype(np.int32)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A batch in a slot."""

    batch: Batch
    computed: Batch | None  # what of it the device computes; None = nothing, since all are queries of a table
    shape: Shape | None  # of that


class Runner:
    """Runs batches in slots, for each `stage`, `start` and `finish`.

    Only one thread at a time is in `start`, and one in `finish`; see Device.
    """

    def __init__(
        self,
        device: Device,
        packer: Packer,
        shapes: Shapes,
        *,
        queries: QueryTable | None = None,
        unused_ids: Sequence[int] = (),
    ) -> None:
        """queries: None = they are computed like documents; unused_ids: tokens without a weight, where each has one"""
        self._device = device
        self._packer = packer
        self._shapes = shapes
        self._queries = queries
        self._unused_ids = np.array(unused_ids, np.int32)
        self._inside: dict[int, _Staged] = {}  # by slot

    def stage(self, slot: int, batch: Batch) -> EngineError | None:
        """Pack the batch on the host. After an error the slot is free again."""
        return _error_of(lambda: self._stage(slot, batch))

    def start(self, slot: int) -> EngineError | None:
        """Start to compute what was staged, without waiting. After an error the slot is free again."""
        error = self._started(slot)
        if error is not None and error.kind is EngineErrorKind.OUT_OF_MEMORY:
            error = self._started(slot)  # with what torch kept, and can't give back by itself beside a recording
        if error is not None:
            del self._inside[slot]
        return error

    def _started(self, slot: int) -> EngineError | None:
        error = _error_of(lambda: self._start(slot))
        if error is None or error.kind is EngineErrorKind.FATAL:
            return error
        return _error_of(self._device.settle) or error  # ready for the next batch, if the device still works

    def finish(self, slot: int) -> Results | EngineError:
        """Wait for the rows of the batch in this slot."""
        results: Results = {}
        return _error_of(lambda: results.update(self._finish(slot))) or results

    def _stage(self, slot: int, batch: Batch) -> None:
        assert batch.outputs in self._shapes.outputs, batch.outputs
        computed = batch if self._queries is None else self._queries.documents(batch)
        shape = None
        if computed is not None:
            shape = self._shapes.of(computed)
            self._packer.write(self._device.block(slot), computed, shape)
        self._inside[slot] = _Staged(batch, computed, shape)

    def _start(self, slot: int) -> None:
        staged = self._inside[slot]
        if staged.computed is not None and staged.shape is not None:
            num_rows = NumRows(staged.computed.num_seqs, staged.computed.num_tokens)
            self._device.start(slot, staged.shape, num_rows)

    def _finish(self, slot: int) -> Results:
        staged = self._inside.pop(slot)
        results: Results = {}
        if staged.computed is not None:
            results = self._with_offsets(self._device.finish(slot), staged.computed)
        return results if self._queries is None else self._queries.with_queries(results, staged.batch)

    def _with_offsets(self, results: Results, batch: Batch) -> Results:
        """Rows of tokens belong to sequences, and of a token's weights each id keeps the largest."""
        found: Results = {}
        for kind, rows in results.items():
            if kind in ROWS_OF_SEQUENCES or rows.offsets is not None:
                found[kind] = rows
            elif kind is OutputKind.SPARSE:
                weights, seqlens = rows.values[:, 0], np.diff(batch.cu_seqlens)
                found[kind] = Rows(*largest_of_each_id(weights, batch.token_ids, seqlens, unused_ids=self._unused_ids))
            else:
                found[kind] = Rows(rows.values, batch.cu_seqlens)
        return found


def _error_of(work: Callable[[], None]) -> EngineError | None:
    """The exception as an EngineError, which does not refer to it: that would keep the batch's large tensors."""
    try:
        work()
    except Exception as error:
        return engine_error(error)
    return None
