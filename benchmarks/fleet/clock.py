"""Virtual time: events happen in their order, and the clock jumps from one to the next."""

import heapq
from collections.abc import Callable


class Clock:
    """`now` is in seconds. Events of the same moment happen in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Let something happen then; at once if that has passed."""
        self._num_events += 1
        heapq.heappush(self._events, (max(when, self.now), self._num_events, event))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
