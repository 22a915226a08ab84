"""Runs batches on a device, slot by slot: picks the shape, packs, collects rows. Knows no tickets, threads or model.

A device has slots, each with room for one batch on its way there and back. It knows neither what is computed nor who
waits for it. The CPU is one here, for checks (it is slow); a GPU is in cuda_device.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.packing import ALL_OUTPUTS, Packer, Shape, Shapes
from engine.machine.failures import engine_error
from engine.types import Batch, EngineError, EngineErrorKind, OutputKind, Results, Rows

# A packed block on the device (int32) and its shape -> rows by output kind: [B, D] pooled, [T, D] of tokens, in any
# floating dtype. It never synchronises with the host.
Compute = Callable[[Tensor, Shape], dict[OutputKind, Tensor]]
NumRows = Mapping[OutputKind, int]  # the number of rows of each output that are no padding


class Device(Protocol):
    """Computes batches in slots. One thread at a time calls `start`, and one `finish`, perhaps at the same time."""

    def block(self, slot: int) -> NDArray[np.int32]:
        """The host's block for the slot's next batch. Write it only before `start`, and again after `finish`."""

    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        """Start to compute the block, after the batches started before. Does not wait."""

    def finish(self, slot: int) -> dict[OutputKind, NDArray[np.float32]]:
        """Wait for the batch in this slot, not for later ones. The caller owns the rows."""

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
    def finish(self, slot: int) -> dict[OutputKind, NDArray[np.float32]]:
        torch.set_num_threads(self._num_threads)  # for the calling thread only
        shape, num_rows = self._started.pop(slot)
        rows = self._compute(torch.from_numpy(self._blocks[slot]), shape)
        return {kind: rows[kind][:number].to(torch.float32, copy=True).numpy() for kind, number in num_rows.items()}

    def settle(self) -> None:
        """See Device."""


class Runner:
    """Runs batches in slots, for each `stage`, `start` and `finish`.

    Only one thread at a time is in `start`, and one in `finish`; see Device.
    """

    def __init__(self, device: Device, packer: Packer, shapes: Shapes) -> None:
        self._device = device
        self._packer = packer
        self._shapes = shapes
        self._inside: dict[int, tuple[Batch, Shape]] = {}  # by slot

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
        assert batch.outputs in ALL_OUTPUTS, batch.outputs
        shape = self._shapes.of(batch)
        self._packer.write(self._device.block(slot), batch, shape)
        self._inside[slot] = batch, shape

    def _start(self, slot: int) -> None:
        batch, shape = self._inside[slot]
        num_rows = {kind: batch.num_tokens if kind is OutputKind.TOKENS else batch.num_seqs for kind in batch.outputs}
        self._device.start(slot, shape, num_rows)

    def _finish(self, slot: int) -> Results:
        batch, _ = self._inside.pop(slot)
        rows = self._device.finish(slot)
        return {
            kind: Rows(values, batch.cu_seqlens if kind is OutputKind.TOKENS else None) for kind, values in rows.items()
        }


def _error_of(work: Callable[[], None]) -> EngineError | None:
    """The exception as an EngineError, which does not refer to it: that would keep the batch's large tensors."""
    try:
        work()
    except Exception as error:
        return engine_error(error)
    return None
