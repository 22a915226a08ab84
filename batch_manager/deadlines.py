"""Which open request's deadline comes next."""

import heapq
import math

from batch_manager.batches import Request

_MIN_SIZE = 1024


class Deadlines:
    """Deadlines of requests, soonest first. Requests are not taken out when they close; they are swept now and then,
    so that the heap holds at most about twice as many as are open."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._sweep_at = _MIN_SIZE

    def add(self, request: Request) -> None:
        """Watch a request that has a deadline."""
        heapq.heappush(self._heap, (request.deadline, request.request_id, request))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].is_open]
            heapq.heapify(self._heap)
            self._sweep_at = max(_MIN_SIZE, 2 * len(self._heap))

    @property
    def next(self) -> float:
        """The soonest deadline of an open request; inf where there is none."""
        heap = self._heap
        while heap and not heap[0][2].is_open:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def take_due(self, now: float) -> list[Request]:
        """Open requests whose deadline has come; they are no longer watched."""
        due = []
        while self.next <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due
