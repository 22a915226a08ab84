"""Work on the messages of a stream, some at once; results come in the order of the messages. Knows no protocol."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

_Message = TypeVar("_Message")
_Result = TypeVar("_Result")


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
