"""Counts the memory for the rows of requests and for answers, taken before the work is done.

A request takes it as a whole, also where it is computed in several parts, and holds it until its client has read the
answer.
"""

import asyncio
from collections import Counter, deque

from server.requests.errors import NotReady

MAX_HELD_BYTES = 128 * 1024 * 1024  # of all frontends
SMALL_BYTES = 64 * 1024  # of a request's body or rows: so few are not counted, nor refused because of others

_Waiting = dict[asyncio.Future[None], int]


class RowMemory:
    """Bytes of large requests' rows and answers, of which this process holds at most `max_bytes`, of one key at most
    `max_of_key`. One always fits: it counts as no more than that."""

    def __init__(self, max_bytes: int, *, max_wait: float, max_of_key: int | None = None) -> None:
        """`max_wait` is in seconds. Without `max_of_key` a key may take all."""
        self.max_bytes = max(1, max_bytes)  # or as many as there are would count as none
        self._max_of_key = self.max_bytes if max_of_key is None else max(1, max_of_key)
        self._max_wait = max_wait
        self._waiting: dict[str, _Waiting] = {}  # by key, in the order in which their first ones came
        self._held = Counter[str]()  # by key

    @property
    def num_held_bytes(self) -> int:
        """The bytes held, as they count."""
        return self._held.total()

    async def take(self, num_bytes: int, key: str = "") -> "HeldMemory":
        """Take room for rows that are not computed yet: wait for it, behind those of the key that came before.

        Raises NotReady after `max_wait`. Who is cancelled holds nothing.
        """
        counted = self.counted(num_bytes)
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, {})[granted] = counted
        self.grant()
        try:
            async with asyncio.timeout(self._max_wait):
                await granted
        except BaseException as error:
            self._forget(key, granted)
            if not granted.cancelled():  # it was granted in this very tick
                self.hold(-counted, key)
            self.grant()
            if isinstance(error, TimeoutError):
                raise self.is_full() from None
            raise
        return HeldMemory(self, key, counted)

    def counted(self, num_bytes: int) -> int:
        """The bytes that so many count as: the largest takes all that a key may have, and no more."""
        return min(num_bytes, self._max_of_key)

    def fits(self, num_bytes: int, key: str) -> bool:
        """Whether so many more bytes may be held."""
        return self._key_may(num_bytes, key) and self.num_held_bytes + num_bytes <= self.max_bytes

    def _key_may(self, num_bytes: int, key: str) -> bool:
        return self._held[key] + num_bytes <= self._max_of_key

    def hold(self, num_bytes: int, key: str) -> None:
        """Count so many more; less than none when they are held no more."""
        self._held[key] += num_bytes
        if not self._held[key]:
            del self._held[key]

    def grant(self) -> None:
        """Give room to those who wait, as far as it goes: the keys in turn, each in order."""
        turns = deque(self._waiting)
        while turns:
            key = turns.popleft()
            granted, num_bytes = next(iter(self._waiting[key].items()))
            if not self._key_may(num_bytes, key):
                continue
            if not self.fits(num_bytes, key):
                return  # who comes later must not take what it waits for
            self._forget(key, granted)
            if not granted.cancelled():  # else it will be gone in this very tick
                self.hold(num_bytes, key)
                granted.set_result(None)
            if key in self._waiting:
                self._waiting[key] = self._waiting.pop(key)
                turns.append(key)

    def _forget(self, key: str, granted: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(key, {})
        waiting.pop(granted, None)
        if not waiting:
            self._waiting.pop(key, None)

    def is_full(self) -> NotReady:
        """The refusal."""
        message = "too many rows and answers wait for clients that have not read them"
        return NotReady(message, reason="unread_answers")


class HeldMemory:
    """The bytes that one request holds: first its rows, then its answer."""

    __slots__ = ("_key", "_memory", "_num_bytes")

    def __init__(self, memory: RowMemory, key: str, num_bytes: int = 0) -> None:
        self._memory = memory
        self._key = key
        self._num_bytes = num_bytes

    def change(self, num_bytes: int) -> None:
        """Hold so many bytes instead. Never waits, since they are in memory already. Raises NotReady."""
        counted = self._memory.counted(num_bytes)
        more = counted - self._num_bytes
        if more > 0 and not self._memory.fits(more, self._key):
            raise self._memory.is_full()
        self._memory.hold(more, self._key)
        self._num_bytes = counted
        self._memory.grant()

    def release(self) -> None:
        """Hold nothing any more."""
        self.change(0)


class MemoryOfParts:
    """Waits until each part of a request has said how many bytes it needs, and takes memory for all of them.

    If each part took its own, requests could hold some memory each and wait for more until all of them are refused. An
    error of one part has to end the others. Must be made inside a running event loop.
    """

    def __init__(self, num_parts: int) -> None:
        self.held: HeldMemory | None = None  # None = none is needed, or none was taken yet
        self._num_silent = num_parts
        self._num_bytes = 0
        self._memory: RowMemory | None = None  # the largest that a part has named
        self._all_have_said = asyncio.Event()
        self._is_taken = asyncio.Event()

    async def take(self, memory: RowMemory, num_bytes: int, key: str) -> None:
        """One part needs so many bytes; it says so once. Returns when there is room for all. Raises NotReady."""
        is_first = self._memory is None
        if self._memory is None or memory.max_bytes > self._memory.max_bytes:
            self._memory = memory
        self._say(num_bytes)
        if not is_first:
            await self._is_taken.wait()
            return
        await self._all_have_said.wait()
        if self._num_bytes > SMALL_BYTES:
            self.held = await self._memory.take(self._num_bytes, key)
        self._is_taken.set()

    def needs_none(self) -> None:
        """One part has ended without asking."""
        self._say(0)

    def _say(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._num_silent -= 1
        if not self._num_silent:
            self._all_have_said.set()
