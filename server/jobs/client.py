"""A frontend's end of the connection to the jobs process: calls that are answered, or refused in time."""

import asyncio
import itertools
from collections.abc import Mapping

from server.jobs import messages
from server.jobs.messages import Call, Reason, Refused, Reply
from wire.frames import Buffer
from wire.link import Link

_START_SECONDS = 3.0  # to wait for a process that is being started again
ANSWER_SECONDS = 30.0  # for a disk that is slow
_MAX_CALLS = 4096  # that wait for their answers
_RETRY_SECONDS = 2.0  # what clients are told


class JobsClient:
    """Call open and close, each once."""

    def __init__(self, path: str) -> None:
        self._link = Link(path, on_frame=self._received, on_up=lambda: None, on_down=self._lost)
        self._lives = asyncio.Event()  # the process has said that it is there
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> None:
        """What waits for an answer is refused."""
        self._link.close()
        self._lost()

    async def call(
        self,
        what: str,
        owner: str,
        fields: Mapping[str, object] | None = None,
        body: Buffer = b"",
        *,
        seconds: float = ANSWER_SECONDS,
    ) -> Reply:
        """Ask the jobs process. Raises Refused: UNAVAILABLE where it is down or does not answer in time."""
        await self._wait_for_it()
        if len(self._calls) >= _MAX_CALLS:
            raise _unavailable("too many calls wait for the jobs process")
        number = next(self._numbers)
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._calls[number] = future
        self._link.send(messages.CALL, number, messages.encode_call(Call(what, owner, dict(fields or {})), body))
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise _unavailable("the jobs process does not answer") from None
        finally:
            del self._calls[number]

    async def _wait_for_it(self) -> None:
        if self._lives.is_set():
            return
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._lives.wait()
        except TimeoutError:
            raise _unavailable("the jobs process is down") from None

    def _received(self, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == messages.READY:
            self._lives.set()
            return
        future = self._calls.get(frame_id)  # None if its caller waits no more
        if future is None or future.done():
            return
        if kind == messages.REPLY:
            future.set_result(messages.decode_reply(payload))
        else:
            future.set_exception(messages.decode_refused(payload))

    def _lost(self) -> None:
        self._lives.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(_unavailable("the jobs process has ended before it answered"))


def _unavailable(message: str) -> Refused:
    return Refused(Reason.UNAVAILABLE, message, retry_after=_RETRY_SECONDS)
