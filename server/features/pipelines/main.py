"""The process of pipelines: `python -P -m server.features.pipelines.main <control fd> <supervisor pid>`.

It alone runs users' code.

That code was given on the command line, and may do what this user may. If it ends this process, the supervisor starts
it again; if it blocks the event loop, the watchdog ends it. `Service` is the process's end of its frontends'
connections: each RUN is a task, and its answer a frame.
"""

import asyncio
import logging
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from server.features.pipelines import messages
from server.features.pipelines.loading import PipelinesUnusable, load
from server.features.pipelines.messages import Listed, PipelinesStart, Run
from server.features.pipelines.runs import Body, Clients, Runs
from server.requests.errors import EngineFailed, RequestError
from wire.child import Child, StartError, run
from wire.connection import Connection
from wire.connection import serve as serve_connections

Running = AbstractAsyncContextManager[Body]

logger = logging.getLogger("embedline.server")


class Service:
    """A run whose frontend is gone is cancelled.

    For a frontend one answer at a time is made and sent, so that large ones are not all in memory: it counts each as
    held before the next has come. Keys take turns.
    """

    def __init__(self, listing: Sequence[Listed], run: Callable[[Run], Running]) -> None:
        """`run` gives what makes the answer's body; both raise RequestError."""
        self._listing = listing
        self._run = run
        self._tasks: dict[Connection, dict[int, asyncio.Task[None]]] = {}
        # None is the connection's, for which one answer of each key waits
        self._turns: dict[Connection, defaultdict[str | None, asyncio.Lock]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept frontends."""
        self._server = await serve_connections(listener, self._received, self._accepted, self._left)

    def stop(self) -> None:
        """Frontends have ended before: nobody waits for a run."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._tasks):
            connection.close()

    def _accepted(self, connection: Connection) -> None:
        self._tasks[connection], self._turns[connection] = {}, defaultdict(asyncio.Lock)
        connection.send(messages.LISTING, 0, [msgspec.msgpack.encode(self._listing)])

    def _left(self, connection: Connection) -> None:
        del self._turns[connection]
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
        turns = self._turns[connection]
        try:
            async with self._run(run) as body, turns[run.owner], turns[None]:
                connection.send(messages.RESULT, frame_id, await body())
                await connection.drained()
        except RequestError as error:
            connection.send(messages.REFUSED, frame_id, [messages.encode_refused(error)])
        except Exception:
            logger.exception("the pipeline %s failed because of a bug of the server", run.pipeline)
            bug = EngineFailed("the pipelines process failed on this run")
            connection.send(messages.REFUSED, frame_id, [messages.encode_refused(bug)])


async def serve(child: Child, start: PipelinesStart) -> None:
    """The role. Raises StartError."""
    clients = Clients(start.http_path, start.secret)
    try:
        runs = Runs(load(start.file), clients, most=start.max_runs, metrics=child.metrics)
    except PipelinesUnusable as error:
        raise StartError(str(error)) from None
    child.metrics.watch("embedline_pipelines_running", child.title, level=lambda: runs.num_open)
    service = Service(runs.listing(), runs.run)
    await service.start(socket.socket(fileno=start.listener_fd))
    child.ready()
    await child.stopping.wait()
    service.stop()
    clients.close()


if __name__ == "__main__":
    run(serve, PipelinesStart, exits_on_error=False)
