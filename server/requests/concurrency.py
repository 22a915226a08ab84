"""Bounds how much a frontend works on at a time: open requests, by API key, and messages of one stream, in their order.

Knows no request's content and no protocol.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from server.requests.errors import Overloaded

GAVE_WAY = 0.0  # the time of a clock that was not late, but the oldest of too many
_Message = TypeVar("_Message")
_Result = TypeVar("_Result")


def gave_way() -> Overloaded:
    """The refusal then."""
    message = "too many requests of this API key wait for their bodies, and this one has waited longest"
    return Overloaded(message, reason="concurrency")


class OpenRequests:
    """Requests that are open, and places for those that are worked on.

    Who waits for its client, to send or to read, takes no place: silent clients would take all of them. Where all
    places are taken, a key that has fewer than its part of them gets one more, so nobody can take another key's.
    """

    def __init__(self, max_in_work: int) -> None:
        """A key may have as many that wait for their bodies."""
        self.num_open = 0  # from their heads to their answers' last bytes; to be read only
        self._max_in_work = max_in_work
        self._in_work: dict[str, int] = {}  # by key; none is 0
        self._num_in_work = 0
        self._clocks: dict[str, dict[asyncio.Timeout, None]] = {}  # of those that wait for bodies; by key, by age

    def begin(self, key: str) -> None:
        """One more is worked on."""
        self._in_work[key] = self._in_work.get(key, 0) + 1
        self._num_in_work += 1

    def end(self, key: str) -> None:
        """One less."""
        self._num_in_work -= 1
        left = self._in_work[key] - 1
        if left:
            self._in_work[key] = left
        else:
            del self._in_work[key]

    def check(self, key: str) -> None:
        """Raises Overloaded if too many are worked on, one of this key included."""
        if self._num_in_work <= self._max_in_work:
            return
        part = max(1, self._max_in_work // max(1, len(self._in_work)))
        if self._in_work.get(key, 0) > part:
            message = "too many requests are open; see --max-concurrent-requests"
            raise Overloaded(message, reason="concurrency")

    @contextlib.contextmanager
    def one_of(self, key: str) -> Iterator[None]:
        """Counts one more request of this key as worked on while the block runs; `check` is for those that come."""
        self.begin(key)
        try:
            yield
        finally:
            self.end(key)

    @contextlib.contextmanager
    def waiting(self, key: str, clock: asyncio.Timeout) -> Iterator[None]:
        """Counts one more request of this key as waiting for its body, until `clock` says that it is late.

        With one too many the clock of the one that has waited longest says so now: a client that sends is never that.
        """
        clocks = self._clocks.setdefault(key, {})  # as many as there are keys
        if len(clocks) >= self._max_in_work:
            oldest = next(iter(clocks))
            del clocks[oldest]
            if not oldest.expired():
                oldest.reschedule(GAVE_WAY)
        clocks[clock] = None
        try:
            yield
        finally:
            clocks.pop(clock, None)


class OpenRequest:
    """One request while the block runs: from its head to its answer's last byte."""

    __slots__ = ("_all", "_is_in_work", "_key")

    def __init__(self, all_of_them: OpenRequests) -> None:
        self._all = all_of_them
        self._key = ""
        self._is_in_work = False

    def __enter__(self) -> Self:
        self._all.num_open += 1
        return self

    def let_in(self, key: str) -> None:
        """It is worked on from now on. Raises Overloaded if too many are."""
        if not self._is_in_work:
            self._key, self._is_in_work = key, True
            self._all.begin(key)
        self._all.check(key)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the request as waiting for its client while the block runs."""
        was_in_work = self._is_in_work
        self.end_work()
        try:
            yield
        finally:
            if was_in_work:
                self._is_in_work = True
                self._all.begin(self._key)

    @contextlib.contextmanager
    def waiting_for_body(self, clock: asyncio.Timeout) -> Iterator[None]:
        """Counts the request as waiting for its body while the block runs, until `clock` says that it is late, or that
        it gives way to others of its key."""
        with self.waiting(), self._all.waiting(self._key, clock):
            yield

    def end_work(self) -> None:
        """Note that the answer is made: what is left is that its client reads it."""
        if self._is_in_work:
            self._is_in_work = False
            self._all.end(self._key)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end_work()
        self._all.num_open -= 1


class InOrder(Generic[_Message, _Result]):
    """A block of `async with`: inside it the stream is read, and when it ends all that is still open is cancelled.

    was_cut  whether the stream was read no further, though its client may have sent more
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[_Message | None]],
        work: Callable[[_Message], Coroutine[Any, Any, _Result]],
        *,
        max_open: int,
        dropped: Callable[[_Result], None],
    ) -> None:
        """`read` gives None at the end. Of at most `max_open` messages the results are not taken yet. `dropped` gets
        those that nobody will take."""
        self.was_cut = False
        self._read = read
        self._work = work
        self._dropped = dropped
        self._room = asyncio.Semaphore(max_open)
        self._open: asyncio.Queue[asyncio.Task[_Result] | None] = asyncio.Queue()  # bounded by `_room`
        self._first: asyncio.Task[_Result] | None = None  # whose result is waited for

    async def __aenter__(self) -> Self:
        self._reader = asyncio.get_running_loop().create_task(self._read_all())
        return self

    async def _read_all(self) -> None:
        try:
            while (message := await self._next_message()) is not None:
                self._open.put_nowait(asyncio.get_running_loop().create_task(self._work(message)))
                del message  # until the next has come it would be kept
        finally:
            self._open.put_nowait(None)

    async def _next_message(self) -> _Message | None:
        await self._room.acquire()
        return await self._read()

    async def next(self) -> _Result | None:
        """The next result, None at the end. Raises what `read` and `work` raise."""
        self._first = await self._open.get()
        if self._first is None:
            if not self.was_cut:
                await self._reader
            return None
        result = await self._first
        self._first = None
        self._room.release()
        return result

    def cut(self) -> None:
        """Read no further; what was read gets its results."""
        self.was_cut = not self._reader.done()
        self._reader.cancel()
        self._open.put_nowait(None)  # it may not even have begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.cancel()
        left = [self._first] if self._first is not None else []
        while not self._open.empty():
            if (task := self._open.get_nowait()) is not None:
                left.append(task)
        for task in left:
            task.cancel()
        for result in await asyncio.gather(*left, self._reader, return_exceptions=True):
            if result is not None and not isinstance(result, BaseException):
                self._dropped(result)
