"""The child's end of the control channel, for processes that live on an event loop."""

import asyncio
import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar

from wire import control
from wire.connection import FrameConnection
from wire.control import ControlRequest, Json, ProcessStart
from wire.metrics import Recorder
from wire.process import begin, settle, waiting_tasks

_Start = TypeVar("_Start")
Role = Callable[["Child", _Start], Coroutine[Any, Any, None]]


class StartError(Exception):
    """A process can't do its work; the message is one line for the operator."""


class Child:
    """This process: its connection to the supervisor.

    process   what START said to every process; set once it has come
    on_state  called with each STATE; earlier ones are lost, so ask for the newest after setting it
    metrics   deltas that the next heartbeat carries
    holds     called when an operator asks: numbers of what waits in this process besides the metrics' levels, by name
    on_beat   called twice a second, after each heartbeat
    stopping  set once the supervisor says STOP, after which the role should return
    """

    def __init__(self) -> None:
        self.process: ProcessStart
        self.metrics = Recorder()
        self.stopping = asyncio.Event()
        self.on_state: Callable[[Json], None] = lambda state: None
        self.holds: Callable[[], Json] = dict
        self.on_beat: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._start: asyncio.Future[memoryview] = self._loop.create_future()
        self._replies: dict[int, asyncio.Future[Json]] = {}
        self._num_requests = 0
        self._connection = FrameConnection(self._received, lambda _: os._exit(1))

    @property
    def index(self) -> int:
        """The number of this process within its role."""
        return self.process.index

    @property
    def title(self) -> str:
        """The title that `ps` shows after "embedline: ": the role and the index."""
        return self.process.title

    @property
    def role(self) -> str:
        """The role, without the index."""
        return self.title.rpartition(" ")[0]

    async def join(self, control_fd: int, kind: type[_Start]) -> _Start:
        """Shake hands with the supervisor and wait for START. Returns what it says to the role."""
        channel = socket.socket(fileno=control_fd)
        await self._loop.create_unix_connection(lambda: self._connection, sock=channel)
        self.process, start = control.decode_start(await self._start, kind)
        begin(self.title, self.process.log_level, json_output=self.process.json_output)
        self._beat(self._loop.time())
        return start

    async def enter(self, stage: str) -> None:
        """Tell the supervisor what this process does next of its start. It is in the socket on return, so a death right
        after it loses nothing."""
        self._connection.send(control.STAGE, 0, control.encode({"stage": stage}))
        await self._connection.sent()

    def ready(self, info: Json | None = None) -> None:
        """Tell the supervisor that this process serves."""
        gc.freeze()  # what is loaded now stays loaded; the garbage collector can skip it
        self._connection.send(control.READY, 0, control.encode(info or {}))

    def fail(self, message: str) -> None:
        """Tell the supervisor why this process can't serve. The process exits after that."""
        self._connection.send(control.FAILED, 0, control.encode({"message": message}))
        self._connection.close()

    async def request(self, what: ControlRequest) -> Json:
        """Ask the supervisor; what this process has counted so far goes ahead of the question."""
        self._send_heartbeat()
        number = self._num_requests = self._num_requests + 1
        self._replies[number] = self._loop.create_future()
        self._connection.send(control.REQUEST, number, control.encode({"what": what}))
        try:
            return await self._replies[number]
        finally:
            del self._replies[number]

    def _beat(self, due: float) -> None:
        now = self._loop.time()
        self.metrics.observe("embedline_event_loop_lag_seconds", self.role, value=max(0.0, now - due))
        self._send_heartbeat()
        self.on_beat()
        due = now + control.HEARTBEAT_SECONDS
        self._loop.call_at(due, self._beat, due)

    def _send_heartbeat(self) -> None:
        self._connection.send(control.HEARTBEAT, 0, control.encode({"metrics": self.metrics.drain()}))

    def _received(self, _: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == control.START:
            self._start.set_result(payload)
        elif kind == control.STATE:
            self.on_state(control.decode(payload))
            self._connection.send(control.SEEN, frame_id, control.encode({}))
        elif kind == control.STOP:
            self.stopping.set()
        elif kind == control.DUMP:
            levels = {name: value for name, *_, value in self.metrics.levels()}
            held = {**levels, **self.holds(), "tasks": waiting_tasks()}
            self._connection.send(control.DUMPED, 0, control.encode(held))
        elif kind == control.REPLY:
            reply = self._replies.get(frame_id)  # None if the caller waits no more
            if reply is not None and not reply.done():
                reply.set_result(control.decode(payload))


def run(role: Role[_Start], kind: type[_Start], *, exits_on_errors_in: Collection[str] | None = None) -> None:
    """Be a child process: `<python> -P -m <module> <control descriptor> <supervisor's pid>`.

    `role` is called once START has come, with what it says to the role: a dataclass of this kind.

    After an uncaught error in a callback the process may be broken. So it exits and is restarted, and its work is sent
    again. Frontends stay: their callbacks run on input from clients, who could otherwise stop the server. They exit
    after errors that have passed through one of these modules, which are of parts that may be broken then.
    """
    control_fd, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    settle(parent_pid)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_exception_handler(partial(_exit_on_error, exits_on_errors_in))
        sys.exit(runner.run(_main(role, kind, control_fd)))


def _exit_on_error(modules: Collection[str] | None, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    loop.default_exception_handler(context)
    if modules is None or _has_passed(context.get("exception"), modules):
        os._exit(1)


def _has_passed(error: BaseException | None, modules: Collection[str]) -> bool:
    return error is not None and any(
        frame.f_globals.get("__name__") in modules for frame, _ in traceback.walk_tb(error.__traceback__)
    )


async def _main(role: Role[_Start], kind: type[_Start], control_fd: int) -> int:
    child = Child()
    start = await child.join(control_fd, kind)
    await child.enter("setup")
    try:
        await role(child, start)
    except StartError as error:
        child.fail(str(error))
        return 2
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
