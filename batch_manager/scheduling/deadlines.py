"""The deadlines of one model's waiting requests."""

import heapq
import itertools
import math

from batch_manager.scheduling.batches import Request

_MIN_HEAP_SIZE = 1024

_Entry = tuple[float, int, Request]


class Deadlines:
    """Deadlines of waiting requests, soonest first.

    What does not wait any more, or has a later deadline by now, is passed over, and swept now and then, so the heap
    holds at most about twice as many entries as wait. Whoever puts a request back into a queue, or sets it a later
    deadline, adds it again; twice does no harm.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._count = itertools.count()  # so that requests themselves are never compared
        self._sweep_at = _MIN_HEAP_SIZE

    def add(self, request: Request) -> None:
        """Watch a waiting request, if it has a deadline."""
        if request.deadline == math.inf:
            return
        heapq.heappush(self._heap, (request.deadline, next(self._count), request))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._sweep_at = max(_MIN_HEAP_SIZE, 2 * len(self._heap))

    @property
    def next(self) -> float:
        """The soonest deadline of a waiting request; inf where there is none."""
        heap = self._heap
        while heap and not _counts(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def take_due(self, until: float) -> list[Request]:
        """Waiting requests whose deadline is no later than that; they are no longer watched."""
        due = {}  # by id, as one may be there twice
        while self.next <= until:
            request = heapq.heappop(self._heap)[2]
            due[request.request_id] = request
        return list(due.values())


def _counts(entry: _Entry) -> bool:
    """Whether the request waits, and until then."""
    deadline, _, request = entry
    return bool(request.waiting_tokens) and deadline == request.deadline
