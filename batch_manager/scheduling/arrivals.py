"""When the oldest of the requests came that wait."""

import math
from collections import deque

from batch_manager.scheduling.batches import Request

_MIN_SIZE = 1024


class Arrivals:
    """Requests in the order in which they came.

    What does not wait any more is passed over, and swept now and then, so at most about twice as many requests are here
    as wait.
    """

    __slots__ = ("_requests", "_sweep_at")

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._sweep_at = _MIN_SIZE

    def add(self, request: Request) -> None:
        """The newest request; it waits."""
        self._requests.append(request)
        if len(self._requests) > self._sweep_at:
            self._requests = deque(one for one in self._requests if one.waiting_tokens)
            self._sweep_at = max(_MIN_SIZE, 2 * len(self._requests))

    @property
    def oldest(self) -> float:
        """When the oldest came of those that still wait; inf where none does."""
        requests = self._requests
        while requests and not requests[0].waiting_tokens:
            requests.popleft()
        return requests[0].arrived if requests else math.inf
