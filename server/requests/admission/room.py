"""Room in memory for the rows of requests and for answers, taken before the work is done."""

import asyncio

from server.requests.errors import NotReady

MAX_HELD_BYTES = 128 * 1024 * 1024  # of all frontends
SMALL_BYTES = 64 * 1024  # of one request; so few are not counted


class Room:
    """Bytes of large requests' rows and answers, of which this process holds at most `max_bytes`; one always fits."""

    def __init__(self, max_bytes: int, *, max_wait: float) -> None:
        """`max_wait` is in seconds."""
        self.max_bytes = max_bytes
        self._max_wait = max_wait
        self._waiting: dict[asyncio.Future[None], int] = {}  # in the order in which they came
        self.num_held_bytes = 0  # to be read only, but by Held

    async def take(self, num_bytes: int) -> "Held":
        """Room for rows that are not computed yet: wait for it, behind those who came before.

        Raises NotReady after `max_wait`. Who is cancelled holds nothing.
        """
        granted = asyncio.get_running_loop().create_future()
        self._waiting[granted] = num_bytes
        self.grant()
        try:
            async with asyncio.timeout(self._max_wait):
                await granted
        except BaseException as error:
            self._waiting.pop(granted, None)
            if not granted.cancelled():  # it was granted in this very tick
                self.num_held_bytes -= num_bytes
            self.grant()
            if isinstance(error, TimeoutError):
                raise self.is_full() from None
            raise
        return Held(self, num_bytes)

    def fits(self, num_bytes: int, *, held_by_others: int) -> bool:
        """Whether so many bytes may be held beside those of others."""
        return not held_by_others or held_by_others + num_bytes <= self.max_bytes

    def grant(self) -> None:
        """Give room to those who wait, in order, as far as it goes."""
        while self._waiting:
            granted, num_bytes = next(iter(self._waiting.items()))
            if not self.fits(num_bytes, held_by_others=self.num_held_bytes):
                return
            del self._waiting[granted]
            if not granted.cancelled():  # else it will be gone in this very tick
                self.num_held_bytes += num_bytes
                granted.set_result(None)

    def is_full(self) -> NotReady:
        """The refusal."""
        message = "too many rows and answers wait for clients that have not read them"
        return NotReady(message, retry_after=1.0, reason="unread_answers")


class Held:
    """What one request holds of a room: first its rows, then its answer."""

    __slots__ = ("_num_bytes", "_room")

    def __init__(self, room: Room, num_bytes: int = 0) -> None:
        self._room = room
        self._num_bytes = num_bytes

    def change(self, num_bytes: int) -> None:
        """Hold so many bytes instead. Never waits, since they are in memory already. Raises NotReady."""
        others = self._room.num_held_bytes - self._num_bytes
        if num_bytes > self._num_bytes and not self._room.fits(num_bytes, held_by_others=others):
            raise self._room.is_full()
        self._room.num_held_bytes, self._num_bytes = others + num_bytes, num_bytes
        self._room.grant()

    def release(self) -> None:
        """Hold nothing any more."""
        self.change(0)
