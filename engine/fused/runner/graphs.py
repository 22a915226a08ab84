"""Records work of the GPU as CUDA graphs, and keeps those of the shapes that come again."""

import collections
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.fused.runner.packing import Shape
from engine.machine.failures import one_line

logger = logging.getLogger("embedline.engine")


@dataclass(frozen=True, slots=True)
class Graph:
    """The recorded work of one shape."""

    replay: Callable[[], None]
    num_bytes: int  # of the device's memory, without the buffers that all graphs share


def recorded(work: Callable[[], None], pool: Any, stream: torch.cuda.Stream) -> Graph:
    """Record the kernels that `work` launches. Raises RuntimeError, including torch.OutOfMemoryError.

    Waits for the device, so recording takes some milliseconds.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        # "relaxed": other threads wait for events and free pinned memory meanwhile, and cuDNN may load a kernel.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="relaxed"):
            before = _memory_outside_torch()
            work()
    except RuntimeError:
        # Before torch 2.12 the allocator does not learn that a recording is over if CUDA has called it invalid
        # (https://github.com/pytorch/pytorch/pull/180395); from then on there is nothing to end.
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        raise
    return Graph(graph.replay, max(0, _memory_outside_torch() - before))


def _memory_outside_torch() -> int:
    """Bytes in use on the current GPU that torch's allocator does not know of, graphs among them."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


class Graphs:
    """Keeps the most recently used CUDA graphs by shape, within limits of number and memory. Knows no CUDA.

    Recording stops the device for tens of milliseconds, so only a shape that comes a second time is recorded.
    """

    def __init__(
        self, record: Callable[[Shape], Graph], *, settle: Callable[[], None], max_num: int, max_bytes: int
    ) -> None:
        """record: may raise RuntimeError. settle: waits until no graph runs, so that one can be destroyed."""
        self._record = record
        self._settle = settle
        self._max_num = max_num
        self._max_bytes = max_bytes
        self._graphs: collections.OrderedDict[Shape, Graph] = collections.OrderedDict()  # last used is last
        self._seen_once: set[Shape] = set()
        self._unrecordable: set[Shape] = set()

    def find(self, shape: Shape) -> Graph | None:
        """The graph of a shape; None = compute it call by call."""
        graph = self._graphs.get(shape)
        if graph is not None:
            self._graphs.move_to_end(shape)
        return graph

    def record_if_repeated(self, shape: Shape) -> None:
        """Record this shape if it occurs again, unless it is recorded already or recording has failed."""
        if shape in self._graphs or shape in self._unrecordable:
            return
        if shape not in self._seen_once:
            self._seen_once.add(shape)
            return
        try:
            self._graphs[shape] = self._record(shape)
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
            self._settle()
            self._graphs.popitem(last=False)

    def _num_bytes(self) -> int:
        return sum(graph.num_bytes for graph in self._graphs.values())
