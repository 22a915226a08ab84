"""How many requests may be sent a second time because they take long."""

import threading


class HedgeBudget:
    """A share of all requests, and one at first, so that the budget works for few requests too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_requests = 0
        self._num_hedges = 0

    def count_request(self) -> None:
        with self._lock:
            self._num_requests += 1

    def take(self, share: float) -> bool:
        """Whether one more may be sent; if so it counts."""
        with self._lock:
            if share <= 0 or self._num_hedges >= max(1.0, share * self._num_requests):
                return False
            self._num_hedges += 1
            return True
