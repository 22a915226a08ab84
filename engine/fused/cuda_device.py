"""A CUDA GPU as a device: one stream computes, another one copies rows to the host, which waits only for finished rows.

All slots share one block on the device, because everything that uses it runs in the order of the computing stream: the
next batch is copied into it after the last kernel that reads this one. Small shapes are recorded as CUDA graphs when
they occur a second time. Until then they are computed call by call, which also loads and compiles kernels. All graphs
share one pool of buffers and write their rows into one tensor of each kind outside of it. Each slot keeps its rows in
tensors of its own until they are copied. The host sleeps while it waits for them.

How many entries ragged rows have only the device knows. So their counts are copied first, and the entries when the host
has waited for these: on a stream of their own, since the one that copies rows already waits for the next batch.

One thread of the process records graphs, beside those that start batches and wait for them; torch records one graph at
a time.
"""

import collections
import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.model.ops import RaggedRows
from engine.fused.packing import Shape, layout
from engine.fused.runner import Compute, DeviceRows, NumRows, offsets_of
from engine.machine.failures import one_line
from engine.types import OutputKind, Results, Rows

logger = logging.getLogger("embedline.engine")

_MAX_GRAPHS = 160  # more than the shapes of usual work; each takes some MB
_GRAPHS_SHARE = 0.04  # of this process's part of the GPU's memory
_RECORDER = ThreadPoolExecutor(1, thread_name_prefix="embedline-graphs")
_ONE_AT_A_TIME = threading.Lock()
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Graph:
    """The recorded work of one shape."""

    replay: Callable[[], None]
    num_bytes: int  # of the device's memory, without the buffers that all graphs share


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """Sizes of the memory that is allocated once."""

    block_size: int  # numbers in the largest packed block
    num_slots: int
    max_num_seqs: int
    row_sizes: Mapping[OutputKind, int]  # numbers in a row, of each kind that is one row a sequence
    memory_share: float = 1.0  # of the GPU's memory: what this process may take


@dataclass(frozen=True, slots=True)
class _Started:
    rows: dict[OutputKind, DeviceRows]  # on the device
    host_rows: dict[OutputKind, Tensor]  # the same in pinned memory, once `copied` has happened; counts of ragged rows


class CudaDevice:
    """See Device of runner.py."""

    def __init__(self, compute: Compute, device: torch.device, sizes: DeviceSizes) -> None:
        self._device = device
        self._use_device()
        slots = range(sizes.num_slots)
        self._compute = compute
        self._computing = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copying_entries = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Its own: what another thread launches meanwhile on the one that computes must not become a part of a graph.
        self._recording = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._host_blocks = [torch.zeros(sizes.block_size, dtype=torch.int32, pin_memory=True) for _ in slots]
        self._block = torch.zeros(sizes.block_size, dtype=torch.int32, device=device)
        self._rows = {  # float32; graphs write here
            kind: torch.empty((sizes.max_num_seqs, size), device=device) for kind, size in sizes.row_sizes.items()
        }
        self._computed = [torch.cuda.Event() for _ in slots]  # type: ignore[no-untyped-call]
        self._copied = [torch.cuda.Event(blocking=True) for _ in slots]  # type: ignore[no-untyped-call]
        self._copied_entries = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
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
            host_rows = {
                kind: _copied_to_host(part.counts if isinstance(part, RaggedRows) else part)
                for kind, part in rows.items()
            }
            self._copied[slot].record(self._copying)
        self._started[slot] = _Started(rows, host_rows)
        if shape.is_worth_a_graph:
            self._graphs.record_if_repeated(shape)

    @torch.inference_mode()
    def finish(self, slot: int) -> Results:
        self._use_device()
        self._copied[slot].synchronize()  # other threads can run meanwhile
        started = self._started.pop(slot)
        return {kind: self._host_rows(rows, started.host_rows[kind]) for kind, rows in started.rows.items()}

    def _host_rows(self, rows: DeviceRows, host_rows: Tensor) -> Rows:
        if isinstance(rows, Tensor):
            return Rows(host_rows.float().numpy())
        offsets = offsets_of(host_rows.numpy(), room=len(rows.entries))
        with torch.cuda.stream(self._copying_entries):
            entries = _copied_to_host(rows.entries[: offsets[-1]])
            self._copied_entries.record(self._copying_entries)
        self._copied_entries.synchronize()
        return Rows(entries.numpy(), offsets)

    def settle(self) -> None:
        self._use_device()
        self._computing.synchronize()
        on_recorder(int)  # while a graph is recorded, torch's allocator answers the next line with an internal assert
        torch.cuda.empty_cache()

    def _use_device(self) -> None:
        """Make it this thread's device. Otherwise CUDA calls would use the first GPU and take memory there."""
        torch.cuda.set_device(self._device)

    def _run(self, shape: Shape, num_rows: NumRows) -> dict[OutputKind, DeviceRows]:
        """Rows in tensors that no later batch overwrites."""
        graph = self._graphs.find(shape)
        if graph is None:
            return {kind: num_rows.own(kind, rows) for kind, rows in self._compute(self._block, shape).items()}
        graph.replay()
        return {kind: self._rows[kind][: num_rows.num_seqs].clone() for kind in shape.outputs}

    @torch.inference_mode()
    def _record(self, shape: Shape) -> Graph:
        """Record a graph, on the thread that records."""

        def work() -> None:
            for kind, rows in self._compute(self._block, shape).items():
                assert isinstance(rows, Tensor), kind
                self._rows[kind][: len(rows)].copy_(rows)

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


def free_memory() -> None:
    """Give back what nothing refers to any more. Of a process that uses no GPU, this frees memory of the host."""
    gc.collect()  # devices and their graphs know each other
    on_recorder(int)  # while a graph is recorded, torch's allocator answers the next line with an internal assert
    torch.cuda.empty_cache()


def on_recorder(work: Callable[[], _Result]) -> _Result:
    """Run something on the thread that records, after what it has to do, and wait for it.

    Handles of libraries belong to threads, and some can't be made while a graph is recorded. So what is to be recorded
    of a library for the first time is called here before.
    """
    return _RECORDER.submit(work).result()


def recorded(work: Callable[[], object], *, pool: Any, stream: torch.cuda.Stream) -> Graph:
    """Record the kernels that `work` launches, on a stream that computes nothing else.

    `torch.cuda.graph` would also wait for the device and empty the caches of its memory and of pinned memory, which
    the batches beside it would have to allocate anew.

    Raises RuntimeError, including torch.OutOfMemoryError. The current stream and torch's allocator are then as before,
    and calling kernels one by one goes on as if nothing had been; only the pool may be of no more use to new graphs,
    where it was not memory that ran out.
    """
    with _ONE_AT_A_TIME:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="relaxed")  # other threads call CUDA meanwhile
                try:
                    before = _memory_outside_torch()
                    work()
                except Exception:
                    with contextlib.suppress(RuntimeError):  # what `work` raised says more
                        graph.capture_end()
                    raise
                graph.capture_end()
        except Exception as error:
            # Before torch 2.12 the allocator does not learn that a recording is over if CUDA has called it invalid
            # (https://github.com/pytorch/pytorch/pull/180395); from then on there is nothing to end.
            with contextlib.suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            if isinstance(error, RuntimeError):
                raise
            raise RuntimeError(one_line(error)) from error  # of a compiler, for example
        return Graph(graph.replay, max(0, _memory_outside_torch() - before))


def _memory_outside_torch() -> int:
    """Bytes in use on the current GPU that torch's allocator does not know of, graphs among them.

    Other processes' are among them too. CUDA says what is free on the device, not whose the rest is; NVML does, but
    by process ids that differ inside a container. So if another process takes memory in the milliseconds of a
    recording, one graph seems larger than it is, and at worst others are recorded again.
    """
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


class Graphs:
    """Keeps the most recently used CUDA graphs by shape, within limits of number and memory. Knows no CUDA.

    Recording takes tens of milliseconds. So only a shape that comes a second time is recorded, one at a time, on a
    thread of its own. Batches are computed call by call until it is done.
    """

    def __init__(
        self, record: Callable[[Shape], Graph], *, synchronize: Callable[[], None], max_num: int, max_bytes: int
    ) -> None:
        """record: may raise RuntimeError. synchronize: waits until no graph runs, so that one can be destroyed."""
        self._record = record
        self._synchronize = synchronize
        self._max_num = max_num
        self._max_bytes = max_bytes
        self._graphs: collections.OrderedDict[Shape, Graph] = collections.OrderedDict()  # last used is last
        self._seen_once: set[Shape] = set()
        self._unrecordable: set[Shape] = set()
        self._recording: tuple[Shape, Future[Graph]] | None = None

    def find(self, shape: Shape) -> Graph | None:
        """The graph of a shape; None = compute it call by call."""
        self._adopt()
        graph = self._graphs.get(shape)
        if graph is not None:
            self._graphs.move_to_end(shape)
        return graph

    def record_if_repeated(self, shape: Shape) -> None:
        """Begin to record this shape if it occurs again, unless it is recorded already or recording has failed."""
        if shape in self._graphs or shape in self._unrecordable or self._recording is not None:
            return
        if shape not in self._seen_once:
            self._seen_once.add(shape)
            return
        self._recording = shape, _RECORDER.submit(self._record, shape)

    def _adopt(self) -> None:
        """Keep the graph that has been recorded meanwhile."""
        if self._recording is None or not self._recording[1].done():
            return
        (shape, future), self._recording = self._recording, None
        try:
            self._graphs[shape] = future.result()
        except RuntimeError as error:  # includes out of memory
            self._unrecordable.add(shape)
            logger.warning(
                "batches of %d tokens run without a CUDA graph, because recording one failed: %s",
                shape.num_tokens,
                one_line(error),
            )
        self._evict()

    def _evict(self) -> None:
        while len(self._graphs) > self._max_num or (len(self._graphs) > 1 and self._num_bytes() > self._max_bytes):
            self._synchronize()
            self._graphs.popitem(last=False)

    def _num_bytes(self) -> int:
        return sum(graph.num_bytes for graph in self._graphs.values())
