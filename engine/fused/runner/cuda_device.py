"""A CUDA GPU as a device: one stream computes, another one copies rows to the host, which waits only for finished rows.

All slots share one block on the device, because everything that uses it runs in the order of the computing stream: the
next batch is copied into it after the last kernel that reads this one. Small shapes are recorded as CUDA graphs when
they occur a second time, by a thread of its own. Until then they are computed call by call, which also loads and
compiles kernels. All graphs share one pool of buffers and write their rows into one tensor outside of it. Each slot
keeps its rows in tensors of its own until they are copied. The host sleeps while it waits for them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.runner.graphs import Graph, Graphs, on_recorder, recorded
from engine.fused.runner.packing import Shape, layout
from engine.fused.runner.runner import Compute, NumRows
from engine.types import OutputKind

_MAX_GRAPHS = 160  # more than the shapes of usual work; each takes some MB
_GRAPHS_SHARE = 0.04  # of this process's part of the GPU's memory


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """Sizes of the memory that is allocated once."""

    block_size: int  # numbers in the largest packed block
    num_slots: int
    max_num_seqs: int
    row_size: int  # numbers in a pooled row
    memory_share: float = 1.0  # of the GPU's memory: what this process may take


@dataclass(frozen=True, slots=True)
class _Started:
    rows: dict[OutputKind, Tensor]  # on the device
    host_rows: dict[OutputKind, Tensor]  # the same in pinned memory, once `copied` has happened


class CudaDevice:
    """See Device of runner.py."""

    def __init__(self, compute: Compute, device: torch.device, sizes: DeviceSizes) -> None:
        self._device = device
        self._use_device()
        slots = range(sizes.num_slots)
        self._compute = compute
        self._computing = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Its own: what another thread launches meanwhile on the one that computes must not become a part of a graph.
        self._recording = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._host_blocks = [torch.zeros(sizes.block_size, dtype=torch.int32, pin_memory=True) for _ in slots]
        self._block = torch.zeros(sizes.block_size, dtype=torch.int32, device=device)
        self._pooled = torch.empty((sizes.max_num_seqs, sizes.row_size), device=device)  # float32; graphs write here
        self._computed = [torch.cuda.Event() for _ in slots]  # type: ignore[no-untyped-call]
        self._copied = [torch.cuda.Event(blocking=True) for _ in slots]  # type: ignore[no-untyped-call]
        self._started: dict[int, _Started] = {}  # by slot
        self._pool = torch.cuda.graph_pool_handle()
        _, total_memory = torch.cuda.mem_get_info(device)
        self._graphs = Graphs(
            self._record,
            synchronize=self._computing.synchronize,
            max_num=_MAX_GRAPHS,
            max_bytes=int(_GRAPHS_SHARE * sizes.memory_share * total_memory),
        )
        # What was allocated here was filled by this stream. To wait for the whole device would break what is recorded.
        torch.cuda.current_stream(device).synchronize()

    @property
    def stream(self) -> torch.cuda.Stream:
        """The stream that computes batches in the order of their start."""
        return self._computing

    def block(self, slot: int) -> NDArray[np.int32]:
        block: NDArray[np.int32] = self._host_blocks[slot].numpy()
        return block

    @torch.inference_mode()
    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        self._use_device()
        with torch.cuda.stream(self._computing):
            size = layout(shape).size
            self._block[:size].copy_(self._host_blocks[slot][:size], non_blocking=True)
            rows = self._run(shape, num_rows)
            self._computed[slot].record(self._computing)
        with torch.cuda.stream(self._copying):
            self._copying.wait_event(self._computed[slot])
            host_rows = {kind: _copied_to_host(part) for kind, part in rows.items()}
            self._copied[slot].record(self._copying)
        self._started[slot] = _Started(rows, host_rows)
        if shape.is_worth_a_graph:
            self._graphs.record_if_repeated(shape)

    def finish(self, slot: int) -> dict[OutputKind, NDArray[np.float32]]:
        self._use_device()
        self._copied[slot].synchronize()  # other threads can run meanwhile
        host_rows = self._started.pop(slot).host_rows
        return {kind: rows.float().numpy() for kind, rows in host_rows.items()}

    def settle(self) -> None:
        self._use_device()
        self._computing.synchronize()
        on_recorder(int)  # while a graph is recorded, torch's allocator answers the next line with an internal assert
        torch.cuda.empty_cache()

    def _use_device(self) -> None:
        """Make it this thread's device. Otherwise CUDA calls would use the first GPU and take memory there."""
        torch.cuda.set_device(self._device)

    def _run(self, shape: Shape, num_rows: NumRows) -> dict[OutputKind, Tensor]:
        """Rows in tensors that no later batch overwrites."""
        graph = self._graphs.find(shape)
        if graph is None:
            rows = self._compute(self._block, shape)
            return {kind: rows[kind][:number] for kind, number in num_rows.items()}
        graph.replay()
        return {OutputKind.POOLED: self._pooled[: num_rows[OutputKind.POOLED]].clone()}

    @torch.inference_mode()
    def _record(self, shape: Shape) -> Graph:
        """On the thread that records."""

        def work() -> None:
            rows = self._compute(self._block, shape)[OutputKind.POOLED]
            self._pooled[: len(rows)].copy_(rows)

        self._use_device()
        with torch.cuda.stream(self._recording):
            little = torch.zeros((16, 16), dtype=torch.bfloat16, device=self._device)
            torch.mm(little, little)  # makes this thread's handle of cuBLAS, which can't be done within
        try:
            return self._recorded(work)
        except torch.OutOfMemoryError:
            pass  # not here, where the error holds what was allocated
        torch.cuda.empty_cache()  # torch gives back nothing by itself while a graph is recorded
        return self._recorded(work)

    def _recorded(self, work: Callable[[], None]) -> Graph:
        try:
            return recorded(work, pool=self._pool, stream=self._recording)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError):
                self._pool = torch.cuda.graph_pool_handle()
            raise


def _copied_to_host(rows: Tensor) -> Tensor:
    """A copy in pinned memory, begun on the current stream. torch keeps such memory and gives it out again."""
    return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows, non_blocking=True)
