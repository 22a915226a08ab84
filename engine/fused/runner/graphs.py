"""Keeps recorded graphs by shape, the last used ones, within a number and an amount of memory. Knows no CUDA.

Recording stops the device for tens of milliseconds, so only a shape that comes a second time is recorded.
"""

import collections
import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.failures import one_line
from engine.fused.runner.shape import Shape

logger = logging.getLogger("embedline.engine")


@dataclass(frozen=True, slots=True)
class Graph:
    """The work of one shape, recorded."""

    replay: Callable[[], None]
    num_bytes: int  # what it takes of the device's memory, the buffers that all of them share left aside


class Graphs:
    """Records a shape that comes again. Where there are too many graphs, the least recently used go."""

    def __init__(
        self, record: Callable[[Shape], Graph], *, settle: Callable[[], None], max_num: int, max_bytes: int
    ) -> None:
        """`record` may raise RuntimeError; `settle` waits until no graph is running, so that one can be destroyed."""
        self._record = record
        self._settle = settle
        self._max_num = max_num
        self._max_bytes = max_bytes
        self._graphs: collections.OrderedDict[Shape, Graph] = collections.OrderedDict()  # the last used is the last
        self._seen_once: set[Shape] = set()
        self._unrecordable: set[Shape] = set()

    def find(self, shape: Shape) -> Graph | None:
        """None where this shape is not recorded; it is computed call by call then."""
        graph = self._graphs.get(shape)
        if graph is not None:
            self._graphs.move_to_end(shape)
        return graph

    def record_if_repeated(self, shape: Shape) -> None:
        """Record this shape if it came before, unless it is recorded already or recording it failed."""
        if shape in self._graphs or shape in self._unrecordable:
            return
        if shape not in self._seen_once:
            self._seen_once.add(shape)
            return
        try:
            self._graphs[shape] = self._record(shape)
        except RuntimeError as error:  # out of memory is one
            self._unrecordable.add(shape)
            logger.warning(
                "batches of %d tokens run without a CUDA graph, as recording one failed: %s",
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
