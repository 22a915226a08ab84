"""One base URL: its connections, how it does, and what it was found to offer. Thread-safe."""

import ssl
import threading

from embedline.client.transport.base_url import Origin
from embedline.client.transport.limit import ConcurrencyLimit
from embedline.client.transport.pool import ConnectionPool

_MAX_PAUSE = 30.0  # seconds


class Endpoint:
    """Times are time.monotonic() seconds."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, *, max_connections: int) -> None:
        self.origin = origin
        self.max_connections = max_connections
        self.pool = ConnectionPool(origin, tls, most=max_connections)
        self.max_items: int | None = None  # of one request, where it has refused more
        self._lock = threading.Lock()
        self._limit = ConcurrencyLimit(max_connections)
        self._num_in_flight = 0
        self._num_failures = 0  # in a row: no connection, or no whole answer
        self._not_before = 0.0
        self._ways: dict[str, tuple[int, bool]] = {}  # by task: which way to ask, and whether it has worked

    @property
    def is_failing(self) -> bool:
        return self._num_failures > 0

    @property
    def not_before(self) -> float:
        """When it may be asked again after a failure."""
        return self._not_before

    @property
    def load(self) -> float:
        """Requests in flight as a share of what is worth while."""
        return self._num_in_flight / self._limit.current

    def try_begin(self, now: float, *, is_first: bool) -> bool:
        """Begin a request if there is room. A call that has none in flight gets its first one in any case, so that it
        never waits for another call; but after a failure one request at a time tries whether it works again."""
        with self._lock:
            if now < self._not_before:
                return False
            most = 1 if self._num_failures else self._limit.current
            if self._num_in_flight >= most and not is_first:
                return False
            self._num_in_flight += 1
            return True

    def answered(self, seconds: float, *, is_usual: bool) -> None:
        """A request ended well. `is_usual`: it was about as large as most."""
        with self._lock:
            self._num_in_flight -= 1
            self._num_failures = 0
            if is_usual:
                self._limit.answered(seconds)

    def refused(self) -> None:
        """It has too much to do: 429 or 503."""
        with self._lock:
            self._num_in_flight -= 1
            self._num_failures = 0
            self._limit.refused()

    def failed(self, now: float, pause: float) -> None:
        """No connection, or no whole answer. It is left alone for `pause` seconds, four times as long each time."""
        with self._lock:
            self._num_in_flight -= 1
            self._limit.refused()
            if now >= self._not_before:  # those that were in flight together fail together
                self._not_before = now + min(_MAX_PAUSE, pause * 4.0**self._num_failures)
                self._num_failures = min(self._num_failures + 1, 20)

    def ended(self) -> None:
        """A request ended in a way that says nothing of how the server does."""
        with self._lock:
            self._num_in_flight -= 1

    def way(self, task: str) -> tuple[int, bool]:
        """Which of the task's ways to ask is the one for this server, and whether it is known to work."""
        return self._ways.get(task, (0, False))

    def learn(self, task: str, way: int, *, is_sure: bool) -> None:
        """The way to ask from now on."""
        with self._lock:
            self._ways[task] = (way, is_sure)

    def takes_fewer(self, num_items: int) -> None:
        """It has refused a request for having more items than this."""
        with self._lock:
            self.max_items = num_items if self.max_items is None else min(self.max_items, num_items)
