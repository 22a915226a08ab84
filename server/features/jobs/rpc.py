"""The two ends of the connections between frontends and the jobs process. A frontend's calls are answered, or refused
in time; the jobs process hands each call to the function of its name. What they send is in `messages`.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from server.features.jobs import messages
from server.features.jobs.messages import Call, Reason, Refused, Reply
from wire.connection import Connection, Link, serve
from wire.frames import Buffer

_START_SECONDS = 3.0  # to wait for a process that is being started again
ANSWER_SECONDS = 30.0  # for a disk that is slow
_MAX_CALLS = 4096  # that wait for their answers
_RETRY_SECONDS = 2.0  # what clients are told
Handler = Callable[[Call, memoryview], Awaitable[Reply]]  # raises Refused
logger = logging.getLogger("embedline.server")


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


class Service:
    """Answers calls. How many there are at a time is bounded by the frontends."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept frontends."""
        self._server = await serve(listener, self._received, self._accepted, self._connections.discard)

    async def stop(self) -> None:
        """Answer what was asked, then hang up."""
        if self._server is not None:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for connection in list(self._connections):
            connection.close()

    def _accepted(self, connection: Connection) -> None:
        self._connections.add(connection)
        connection.send(messages.READY, 0)

    def _received(self, connection: Connection, kind: int, frame_id: int, payload: memoryview) -> None:
        call, body = messages.decode_call(payload)
        task = asyncio.get_running_loop().create_task(self._answer(connection, frame_id, call, body))
        self._tasks.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, connection: Connection, frame_id: int, call: Call, body: memoryview) -> None:
        try:
            reply = await self._handlers[call.what](call, body)
            connection.send(messages.REPLY, frame_id, messages.encode_reply(reply))
        except Refused as refused:
            connection.send(messages.REFUSED, frame_id, messages.encode_refused(refused))
        except Exception:
            logger.exception("the call %s failed because of a bug", call.what)
            bug = Refused(Reason.FAILED, f"the jobs process failed on the call {call.what}")
            connection.send(messages.REFUSED, frame_id, messages.encode_refused(bug))
