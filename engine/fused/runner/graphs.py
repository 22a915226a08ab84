"""Records work of the GPU as CUDA graphs, and keeps those of the shapes that come again.

One thread of the process records, beside those that start batches and wait for them; torch records one graph at a time.
"""

import collections
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from engine.fused.runner.packing import Shape
from engine.machine.failures import one_line

logger = logging.getLogger("embedline.engine")

_RECORDER = ThreadPoolExecutor(1, thread_name_prefix="embedline-graphs")
_ONE_AT_A_TIME = threading.Lock()
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Graph:
    """The recorded work of one shape."""

    replay: Callable[[], None]
    num_bytes: int  # of the device's memory, without the buffers that all graphs share


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
