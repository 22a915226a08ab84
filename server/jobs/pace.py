"""How many requests the jobs process has at the server at a time: as many as it takes without refusing any.

Sync traffic comes first: on 429 and 503 the number is halved and nothing is sent until the server wants to be asked
again; every answer lets it grow by a little.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_MAX_PAUSE_SECONDS = 30.0  # whatever `retry-after` says


class Pace:
    """`async with pace.turn()` around each request. Turns are given in the order in which they were asked for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._in_flight = 0
        self._paused_until = 0.0  # a time of the loop
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def num_free(self) -> int:
        """Requests that could be sent now."""
        if self._loop.time() < self._paused_until:
            return 0
        return max(0, int(self._limit) - self._in_flight - len(self._waiting))

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One request at the server."""
        await self._take()
        try:
            yield
        finally:
            self._in_flight -= 1
            self._give()

    def answered(self) -> None:
        """The server had room."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def refused(self, retry_after: float) -> None:
        """It had none, and wants to be asked again in so many seconds."""
        now = self._loop.time()
        if now >= self._paused_until:  # those that were sent together are refused together
            self._limit = max(1.0, self._limit / 2)
        self._paused_until = max(self._paused_until, now + min(retry_after, _MAX_PAUSE_SECONDS))

    async def _take(self) -> None:
        future = self._loop.create_future()
        self._waiting.append(future)
        self._give()
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiting:
                self._waiting.remove(future)
            elif not future.cancelled():
                self._in_flight -= 1
                self._give()
            raise

    def _give(self) -> None:
        if (rest := self._paused_until - self._loop.time()) > 0:
            if self._waiting and self._timer is None:
                self._timer = self._loop.call_later(rest, self._wake)
            return
        while self._waiting and self._in_flight < int(self._limit):
            future = self._waiting.pop(0)
            if not future.done():
                self._in_flight += 1
                future.set_result(None)

    def _wake(self) -> None:
        self._timer = None
        self._give()
