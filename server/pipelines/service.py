"""The pipelines process's end of its frontends' connections: each RUN is a task, and its answer a frame."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from server.pipelines import messages
from server.pipelines.messages import Listed, Run
from server.requests.errors import EngineFailed, RequestError
from wire.connection import Connection, serve

logger = logging.getLogger("embedline.server")


class Service:
    """`run` gives the answer's body, and raises RequestError. A run whose frontend is gone is cancelled."""

    def __init__(self, listing: Sequence[Listed], run: Callable[[Run], Awaitable[bytes]]) -> None:
        self._listing = listing
        self._run = run
        self._tasks: dict[Connection, dict[int, asyncio.Task[None]]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept frontends."""
        self._server = await serve(listener, self._received, self._accepted, self._left)

    def stop(self) -> None:
        """Frontends have ended before: nobody waits for a run."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._tasks):
            connection.close()

    def _accepted(self, connection: Connection) -> None:
        self._tasks[connection] = {}
        connection.send(messages.LISTING, 0, [msgspec.msgpack.encode(self._listing)])

    def _left(self, connection: Connection) -> None:
        for task in self._tasks.pop(connection).values():
            task.cancel()

    def _received(self, connection: Connection, kind: int, frame_id: int, payload: memoryview) -> None:
        tasks = self._tasks[connection]
        if kind == messages.CANCEL:
            if frame_id in tasks:
                tasks[frame_id].cancel()
            return
        run = messages.decode_run(payload)
        task = asyncio.get_running_loop().create_task(self._answer(connection, frame_id, run))
        tasks[frame_id] = task
        task.add_done_callback(lambda _: tasks.pop(frame_id, None))

    async def _answer(self, connection: Connection, frame_id: int, run: Run) -> None:
        try:
            connection.send(messages.RESULT, frame_id, [await self._run(run)])
        except RequestError as error:
            connection.send(messages.REFUSED, frame_id, [messages.encode_refused(error)])
        except Exception:
            logger.exception("the pipeline %s failed because of a bug of the server", run.pipeline)
            bug = EngineFailed("the pipelines process failed on this run")
            connection.send(messages.REFUSED, frame_id, [messages.encode_refused(bug)])
