"""Calls from a frontend to the process of a feature: by name, with fields and bytes, over a Unix socket.

`Caller` is the frontend's end: each call is answered, or refused in time with an error of a request. `Service` is the
process's end: each call is a task, whose errors go back as they are. Fields and values are msgpack. Larger things than
a frame go in several calls, one after the other, so that neither side holds more than a frame of them.
"""

import asyncio
import itertools
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from server.requests.errors import ERRORS, EngineFailed, NotReady, RequestError
from wire.connection import FrameConnection, Link, serve
from wire.frames import Buffer, ProtocolError

CALL = 0x0600
ANSWER = 0x0601
REFUSED = 0x0602
READY = 0x0603  # the process has accepted the connection, and lives
CANCEL = 0x0604

ANSWER_SECONDS = 30.0  # for a disk that is slow
_START_SECONDS = 3.0  # to wait for a process that is being started again
_MAX_CALLS = 4096  # that wait for their answers
_HEAD_LENGTH = struct.Struct("<I")
_CLASSES = {kind.__name__: kind for kind in ERRORS}

logger = logging.getLogger("embedline.server")


class Reply(NamedTuple):
    """The answer to a call: a value of msgpack, and bytes."""

    value: Any = None
    body: Buffer = b""


@dataclass(slots=True)
class RpcCall:
    """One call, as the process has it."""

    connection: FrameConnection
    number: int
    what: str
    owner: str  # name of the API key; "" where the server has no keys
    fields: dict[str, Any]
    body: memoryview

    def take_body(self) -> bytes:
        """The bytes, which the call holds no longer."""
        body, self.body = bytes(self.body), memoryview(b"")
        return body

    def answer(self, value: object, body: Sequence[Buffer] = ()) -> None:
        """Send the answer; once for each call."""
        self.connection.send(ANSWER, self.number, _payload(value, body))


class Caller:
    """A frontend's end of its connection to one process. Call open and close, each once."""

    def __init__(self, path: str, process: str, *, lost: str = "has ended before it answered") -> None:
        """`process` is its name, and `lost` what clients are told of it where it ends during a call."""
        self._process = process
        self._lost_words = lost
        self._link = Link(path, on_frame=self._received, on_up=lambda: None, on_down=self._lost)
        self._lives = asyncio.Event()  # the process has said that it is there
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> None:
        """Closes the caller: what waits for an answer is refused."""
        self._link.close()
        self._lost()

    async def call(
        self, what: str, owner: str, *, body: Buffer = b"", timeout_s: float | None = ANSWER_SECONDS, **fields: object
    ) -> Reply:
        """Ask the process. Raises RequestError: NotReady where it is down or does not answer in time.

        timeout_s  None where whoever calls bounds the wait
        """
        await self.wait_for_it()
        if len(self._calls) >= _MAX_CALLS:
            raise self._unavailable(f"too many calls wait for the {self._process} process")
        number = next(self._numbers)
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._calls[number] = future
        try:
            self._link.send(CALL, number, _payload((what, owner, fields), [body]))
            del body  # it is the other process's now
            async with asyncio.timeout(timeout_s):
                return await future
        except (TimeoutError, asyncio.CancelledError) as error:
            self._link.send(CANCEL, number)
            if isinstance(error, TimeoutError):
                raise self._unavailable(f"the {self._process} process does not answer") from None
            raise
        finally:
            del self._calls[number]

    async def wait_for_it(self) -> None:
        """Return once the process is there. Raises NotReady."""
        if self._lives.is_set():
            return
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._lives.wait()
        except TimeoutError:
            raise self._unavailable(f"the {self._process} process is down") from None

    def is_there(self, says: memoryview) -> None:
        """The process has said READY, with this payload."""
        self._lives.set()

    def _received(self, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == READY:
            self.is_there(payload)
            return
        future = self._calls.get(frame_id)  # None if its caller waits no more
        if future is None or future.done():
            return
        head, body = _parts(payload)
        if kind == ANSWER:
            future.set_result(Reply(head, body))
        else:
            name, message, facts = head
            future.set_exception(_CLASSES.get(name, EngineFailed)(message, **facts))

    def _lost(self) -> None:
        self._lives.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(self._unavailable(f"the {self._process} process {self._lost_words}"))

    def _unavailable(self, message: str) -> RequestError:
        return NotReady(message, reason=f"{self._process}_unavailable")


class Service:
    """The process's end of its frontends' connections. How many calls there are at a time is bounded by these."""

    def __init__(
        self, process: str, answer: Callable[[RpcCall], Awaitable[None]], *, says: object = None, cancels: bool = False
    ) -> None:
        """`answer` answers a call, or raises RequestError. READY has `says`.

        cancels  whether a call ends at once when nobody waits for it any more; else what has begun is finished
        """
        self._process = process
        self._answer = answer
        self._says = msgspec.msgpack.encode(says)
        self._cancels = cancels
        self._tasks: dict[tuple[FrameConnection, int], asyncio.Task[None]] = {}  # the loop holds tasks weakly
        self._connections: set[FrameConnection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept frontends."""
        self._server = await serve(listener, self._received, self._accepted, self._left)

    async def stop(self) -> None:
        """Answer what is to be finished, then hang up."""
        if self._server is not None:
            self._server.close()
        if self._tasks and not self._cancels:
            await asyncio.wait(self._tasks.values())
        for connection in list(self._connections):
            connection.close()

    def _accepted(self, connection: FrameConnection) -> None:
        self._connections.add(connection)
        connection.send(READY, 0, [self._says])

    def _left(self, connection: FrameConnection) -> None:
        self._connections.discard(connection)
        for its, number in list(self._tasks):
            if its is connection:
                self._cancel(its, number)

    def _received(self, connection: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == CANCEL:
            self._cancel(connection, frame_id)
            return
        (what, owner, fields), body = _parts(payload)
        call = RpcCall(connection, frame_id, what, owner, fields, body)
        task = asyncio.get_running_loop().create_task(self._run(call))
        self._tasks[connection, frame_id] = task
        task.add_done_callback(lambda _: self._tasks.pop((connection, frame_id)))

    def _cancel(self, connection: FrameConnection, number: int) -> None:
        task = self._tasks.get((connection, number))
        if task is not None and self._cancels:
            task.cancel()

    async def _run(self, call: RpcCall) -> None:
        try:
            await self._answer(call)
            return
        except RequestError as error:
            refused = error
        except Exception:
            logger.exception("the call %s failed because of a bug", call.what)
            refused = EngineFailed(f"the {self._process} process failed on the call {call.what}")
        facts = {name: getattr(refused, name) for name in ("param", "own_param", "retry_after", "reason")}
        head = (type(refused).__name__, refused.message, facts)
        call.connection.send(REFUSED, call.number, _payload(head))


def _payload(head: object, body: Sequence[Buffer] = ()) -> list[Buffer]:
    encoded = msgspec.msgpack.encode(head)
    return [_HEAD_LENGTH.pack(len(encoded)), encoded, *body]


def _parts(payload: memoryview) -> tuple[Any, memoryview]:
    """The inverse of `_payload`. Raises ProtocolError."""
    try:
        end = _HEAD_LENGTH.size + _HEAD_LENGTH.unpack_from(payload)[0]
        return msgspec.msgpack.decode(payload[_HEAD_LENGTH.size : end]), payload[end:]
    except (struct.error, msgspec.MsgspecError) as error:
        raise ProtocolError(f"a frame of a feature's process can't be read: {error}") from None
