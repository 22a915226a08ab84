"""The jobs process's end of its frontends' connections: each call goes to the function of its name."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from server.jobs import messages
from server.jobs.messages import Call, Reason, Refused, Reply
from wire.connection import Connection, serve

Handler = Callable[[Call, memoryview], Awaitable[Reply]]  # raises Refused

logger = logging.getLogger("embedline.server")


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
