"""The base URLs of a client: how each one does, how many requests to it are worth while, and which is asked next.

A request goes to the one with the least to do; one that fails is left alone for a while. Thread-safe.
"""

import ssl
import threading
from collections.abc import Collection, Sequence

from embedline.client.base_url import Origin
from embedline.client.pool import ConnectionPool

# of ConcurrencyLimit
_FIRST = 4
_FLOOR = 3  # by latency alone; refusals go down to 1
_FEW_WAIT = 1.5
_MANY_WAIT = 4.0
_KEPT_AFTER_REFUSAL = 0.7
_PROBE_EVERY = 40  # rounds
_MAX_PAUSE = 30.0  # seconds, of an Endpoint that fails


class ConcurrencyLimit:
    """How many requests in flight are worth while, from 1 to `most`, learnt from the server's answers. Knows no clock
    and no thread.

    The idea is TCP Vegas's. The fastest round of answers shows what a request takes that waits for no other of ours. If
    requests take longer, the excess is waiting: of L in flight, L * (1 - fastest / now) wait in the server's queue. A
    few should, so that the server never idles between two of ours; more gain nothing and only make everybody wait. A
    refusal (429, 503) is plainer still and takes three tenths away.

    A server that becomes slower for good, say because the texts become longer, looks like a queue. So now and then half
    of the limit is used for two rounds: the first drains what was sent before, the second shows what is the fastest
    now.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(_FIRST, most))
        self._fastest = float("inf")  # seconds, the mean of a round
        self._round: list[float] = []
        self._num_rounds = 0  # since the last probe began
        self._before_probe = 0.0  # the limit then; 0 = no probe is under way
        self._answers_since_cut = 0
        self._is_starting = True  # grows by halves until something speaks against it

    @property
    def current(self) -> int:
        return int(self._limit)

    def answered(self, seconds: float) -> None:
        """A request of usual size took so long."""
        self._answers_since_cut += 1
        self._round.append(seconds)
        if len(self._round) >= max(4, self.current):
            mean = sum(self._round) / len(self._round)
            self._round.clear()
            self._num_rounds += 1
            if not self._probe(mean):
                self._adapt(mean)

    def refused(self) -> None:
        """The server has too much to do. What was in flight at the last cut says nothing new."""
        self._round.clear()
        self._is_starting = False
        if self._answers_since_cut >= 0:
            self._answers_since_cut = -self.current
            self._limit = max(1.0, self._limit * _KEPT_AFTER_REFUSAL)
            self._before_probe = 0.0
        else:
            self._answers_since_cut += 1

    def _probe(self, mean: float) -> bool:
        """Whether this round belonged to a probe."""
        if self._before_probe and self._num_rounds >= 2:
            self._fastest = mean
            self._limit, self._before_probe = self._before_probe, 0.0
            return True
        if self._num_rounds >= _PROBE_EVERY and self._limit > _FLOOR:
            self._num_rounds = 0
            self._before_probe = self._limit
            self._limit = max(_FLOOR, self._limit / 2)
        return self._before_probe > 0

    def _adapt(self, mean: float) -> None:
        self._fastest = min(self._fastest, mean)
        waiting = self._limit * (1 - self._fastest / mean) if mean > 0 else 0.0
        if waiting > _MANY_WAIT:
            self._is_starting = False
            self._limit = max(min(self._limit, _FLOOR), self._limit - 1)
        elif waiting < _FEW_WAIT:
            self._limit = min(self._most, self._limit * 1.5 if self._is_starting else self._limit + 1)


class Endpoint:
    """One base URL: its connections, how it does, and what it was found to offer.

    Times are time.monotonic() seconds.
    """

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, *, max_connections: int) -> None:
        self.origin = origin
        self.max_connections = max_connections
        self.pool = ConnectionPool(origin, tls, max_in_use=max_connections)
        self.max_items: int | None = None  # of one request, where it has refused more
        self._lock = threading.Lock()
        self._limit = ConcurrencyLimit(max_connections)
        self._num_in_flight = 0
        self._num_failures = 0  # in a row: no connection, or no whole answer
        self.not_before = 0.0  # when it may be asked again after a failure
        self._ways: dict[str, tuple[int, bool]] = {}  # by task: which way to ask, and whether it has worked

    @property
    def is_failing(self) -> bool:
        return self._num_failures > 0

    @property
    def load(self) -> float:
        """Requests in flight as a share of what is worth while."""
        return self._num_in_flight / self._limit.current

    def try_begin(self, now: float, *, is_first: bool) -> bool:
        """Begin a request if there is room. A call that has none in flight gets its first one in any case, so that it
        never waits for another call; but after a failure one request at a time tries whether it works again."""
        with self._lock:
            if now < self.not_before:
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
        """The server has too much to do: 429 or 503."""
        with self._lock:
            self._num_in_flight -= 1
            self._num_failures = 0
            self._limit.refused()

    def failed(self, now: float, pause: float) -> None:
        """No connection, or no whole answer. It is left alone for `pause` seconds, four times as long each time."""
        with self._lock:
            self._num_in_flight -= 1
            self._limit.refused()
            if now >= self.not_before:  # those that were in flight together fail together
                self.not_before = now + min(_MAX_PAUSE, pause * 4.0**self._num_failures)
                self._num_failures = min(self._num_failures + 1, 20)

    def ended(self) -> None:
        """A request ended in a way that says nothing of how the server does."""
        with self._lock:
            self._num_in_flight -= 1

    def way(self, task: str) -> tuple[int, bool]:
        """The one of the task's ways to ask that fits this server, and whether it is known to work."""
        return self._ways.get(task, (0, False))

    def learn(self, task: str, way: int, *, is_sure: bool) -> None:
        """The way to ask from now on."""
        with self._lock:
            self._ways[task] = (way, is_sure)

    def takes_fewer(self, num_items: int) -> None:
        """The server has refused a request for having more items than this."""
        with self._lock:
            self.max_items = num_items if self.max_items is None else min(self.max_items, num_items)


class Endpoints:
    """All base URLs of a client."""

    def __init__(self, all_of_them: Sequence[Endpoint]) -> None:
        self.all = tuple(all_of_them)

    def begin(self, now: float, *, is_first: bool, avoid: Collection[Endpoint] = ()) -> Endpoint | None:
        """The endpoint at which a request was begun; None if none has room. Those to avoid come last."""
        for endpoint in sorted(self.all, key=lambda one: (one in avoid, one.is_failing, one.load)):
            if endpoint.try_begin(now, is_first=is_first):
                return endpoint
        return None

    def wakes_at(self, now: float) -> float:
        """When the first one that is left alone may be asked again; infinity if none is."""
        return min((one.not_before for one in self.all if one.not_before > now), default=float("inf"))

    def others_work(self, tried: Collection[Endpoint]) -> bool:
        """Whether there are endpoints beside these that do not fail."""
        return any(one not in tried and not one.is_failing for one in self.all)

    def for_hedge(self, endpoint: Endpoint, task: str) -> Endpoint:
        """The server for a second copy of a request: elsewhere, if that server is asked in the same way."""
        way = endpoint.way(task)
        others = [one for one in self.all if one is not endpoint and not one.is_failing and one.way(task) == way]
        return min(others, key=lambda one: one.load, default=endpoint)

    def wake_all(self) -> None:
        """Let those that wait for a connection look whether their call is aborted."""
        for endpoint in self.all:
            endpoint.pool.wake_all()

    def close(self) -> None:
        for endpoint in self.all:
            endpoint.pool.close()
