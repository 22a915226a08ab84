"""Limits how many requests the jobs process has at the server at a time: of each owner as many as it takes without
refusing.

Sync traffic comes first: on 429 and 503 the owner's number is halved, and nothing of it is sent until the server wants
to be asked again; every answer lets it grow by a little. Other owners go on: what a key may send is its own, and a
server that has no room for anybody says so to each. Who has least at the server has the next turn.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

_MAX_PAUSE_SECONDS = 30.0  # whatever `retry-after` says


class Postponed(Exception):
    """The request was not sent, and its turn does not come: its queue is closed."""


class SendQueue:
    """A part of an owner's requests, sent in its order, as the lines of a batch. An owner's queues take turns."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.is_closed = False
        self.waiting: dict[asyncio.Future[bool], bool] = {}  # in their order; whether it was computed in vain before

    def close(self) -> None:
        """Closes the queue: nothing more begins. What has been computed and failed may be tried again, unless its owner
        is paused."""
        self.is_closed = True
        for future in [future for future, has_begun in self.waiting.items() if not has_begun]:
            del self.waiting[future]
            if not future.done():
                future.set_result(False)


@dataclass(slots=True)
class _Owner:
    limit: float
    in_flight: int = 0
    paused_until: float = 0.0  # a time of the loop
    queues: deque[SendQueue] = field(default_factory=deque)  # where something waits; some may be empty

    @property
    def num_next(self) -> int:
        """The number of those that wait for nothing but a turn."""
        return min(sum(len(queue.waiting) for queue in self.queues), max(0, int(self.limit) - self.in_flight))


class Pace:
    """Gives turns to requests: `async with pace.turn(queue)` goes around each. `changed` is set when more may be sent
    than before."""

    def __init__(self, most: int) -> None:
        """`most` requests of all owners are sent at a time."""
        self.changed = asyncio.Event()
        self._most = most
        self._num_in_flight = 0
        self._owners: dict[str, _Owner] = {}  # those that have anything here; who had its turn longest ago first
        self._timer: asyncio.TimerHandle | None = None  # for the first pause that ends
        self._loop = asyncio.get_running_loop()

    @property
    def num_free(self) -> int:
        """Requests that could be sent now beside those that wait for nothing but a turn."""
        now = self._loop.time()
        next_ones = sum(owner.num_next for owner in self._owners.values() if owner.paused_until <= now)
        return max(0, self._most - self._num_in_flight - next_ones)

    def is_paused(self, owner: str) -> bool:
        """Whether nothing of this owner may be sent now."""
        return owner in self._owners and self._owners[owner].paused_until > self._loop.time()

    def limit(self, owner: str) -> int:
        """The number of requests of an owner that the server takes at a time, as far as is known."""
        return int(self._owners[owner].limit) if owner in self._owners else self._most

    @property
    def owners(self) -> list[str]:
        """The owners that have anything here, or are paused."""
        return list(self._owners)

    @contextlib.asynccontextmanager
    async def turn(self, queue: SendQueue, *, has_begun: bool = False) -> AsyncIterator[None]:
        """One request at the server. Raises Postponed.         has_begun  it has been computed in vain before"""
        if queue.is_closed and (not has_begun or self.is_paused(queue.owner)):
            raise Postponed
        owner = self._owners.setdefault(queue.owner, _Owner(float(self._most)))
        if queue not in owner.queues:
            owner.queues.append(queue)
        future = self._loop.create_future()
        queue.waiting[future] = has_begun
        self._give()
        is_given = False
        try:
            is_given = await future
            if not is_given:
                raise Postponed
            yield
        finally:
            queue.waiting.pop(future, None)
            if is_given or (future.done() and not future.cancelled() and future.result()):  # in this very tick
                self._end(queue.owner)

    def answered(self, owner: str) -> None:
        """The server had room for a request that has its turn still."""
        its = self._owners[owner]
        its.limit = min(self._most, its.limit + 1 / its.limit)

    def refused(self, owner: str, retry_after: float) -> None:
        """Note that the server had no room, and wants to be asked again in so many seconds."""
        its = self._owners[owner]
        now = self._loop.time()
        if now >= its.paused_until:  # those that were sent together are refused together
            its.limit = max(1.0, its.limit / 2)
        its.paused_until = max(its.paused_until, now + min(retry_after, _MAX_PAUSE_SECONDS))

    def _end(self, owner: str) -> None:
        self._owners[owner].in_flight -= 1
        self._num_in_flight -= 1
        self._free()

    def _free(self) -> None:
        self._give()
        self.changed.set()

    def _give(self) -> None:
        """Turns to those who wait."""
        now = self._loop.time()
        while self._num_in_flight < self._most and (name := self._next(now)) is not None:
            owner = self._owners[name] = self._owners.pop(name)  # the last from now on
            queue = owner.queues.popleft()
            owner.queues.append(queue)
            future = next(iter(queue.waiting))
            del queue.waiting[future]
            if not future.done():  # else it was cancelled in this very tick
                owner.in_flight += 1
                self._num_in_flight += 1
                future.set_result(True)
        self._look_ahead(now)

    def _next(self, now: float) -> str | None:
        """The owner that has the next turn."""
        best = None
        for name, owner in self._owners.items():
            while owner.queues and not owner.queues[0].waiting:
                owner.queues.popleft()
            may_send = owner.queues and owner.paused_until <= now and owner.in_flight < int(owner.limit)
            if may_send and (best is None or owner.in_flight < self._owners[best].in_flight):
                best = name
        return best

    def _look_ahead(self, now: float) -> None:
        """Forget who has nothing here, and wake when the first pause ends."""
        for name in [name for name, owner in self._owners.items() if not owner.in_flight and not owner.queues]:
            if self._owners[name].paused_until <= now:
                del self._owners[name]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pauses := [owner.paused_until for owner in self._owners.values() if owner.paused_until > now]:
            self._timer = self._loop.call_at(min(pauses), self._free)
