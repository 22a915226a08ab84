"""Slots for batches: a few of them run at a time, and all that have begun take turns."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from server.jobs.pace import Lane, Postponed

TURN_SECONDS = 2.0  # of a batch while others wait for its slot
_MAX_LATEST = 1000  # owners of which is known when they had their turns


class Slots:
    """`async with slots.turn(lane)` around each turn, whose lines are asked for in this lane.

    The lane is closed when the turn is over. The owner with the fewest slots goes first, of equals who had its turn
    longest ago; of its batches the one that waits longest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[Lane, float] = {}  # with the times of the loop at which they began
        self._waiting: dict[Lane, asyncio.Future[bool]] = {}  # who waits longest first
        self._latest: dict[str, None] = {}  # owners, who had its turn longest ago first
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @contextlib.asynccontextmanager
    async def turn(self, lane: Lane) -> AsyncIterator[None]:
        """Raises Postponed after `leave`."""
        future = self._waiting[lane] = self._loop.create_future()
        self._look()
        try:
            if not await future:
                raise Postponed
            yield
        finally:
            self._waiting.pop(lane, None)
            self._running.pop(lane, None)
            self._look()

    def leave(self, lane: Lane) -> None:
        """Wait no more for a turn."""
        if (future := self._waiting.pop(lane, None)) is not None and not future.done():
            future.set_result(False)

    def _look(self) -> None:
        """Give what is free, and close lanes for those who wait then."""
        while self._waiting and len(self._running) < self._most:
            held = Counter(lane.owner for lane in self._running)
            places = {owner: place for place, owner in enumerate(self._latest, 1)}
            lane = min(self._waiting, key=lambda one: (held[one.owner], places.get(one.owner, 0)))
            self._note(lane.owner)
            self._running[lane] = self._loop.time()
            future = self._waiting.pop(lane)
            if not future.done():  # else it was cancelled in this very tick
                future.set_result(True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        num_wanted = len(self._waiting) - sum(lane.is_closed for lane in self._running)
        while num_wanted > 0 and (lane_over := self._next_over()) is not None:
            due = self._running[lane_over] + TURN_SECONDS
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self._look)
                return
            lane_over.close()
            num_wanted -= 1

    def _note(self, owner: str) -> None:
        """It has a turn."""
        self._latest.pop(owner, None)
        self._latest[owner] = None
        if len(self._latest) > _MAX_LATEST:
            del self._latest[next(iter(self._latest))]

    def _next_over(self) -> Lane | None:
        """Whose turn ends next: of those that have more slots than an owner that waits, or whose owner waits itself."""
        going_on = [lane for lane in self._running if not lane.is_closed]  # who began first is the first
        held = Counter(lane.owner for lane in going_on)
        owners = {lane.owner for lane in self._waiting}
        fewest = min(held[owner] for owner in owners)
        return next((lane for lane in going_on if lane.owner in owners or held[lane.owner] > fewest), None)
