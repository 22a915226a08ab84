"""One child process: its start, its control channel, its end. The supervisor decides what to do about it."""

import asyncio
import contextlib
import enum
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from server.supervisor.spawn import Spawned, spawn
from wire import control
from wire.connection import FrameConnection
from wire.control import Json, ProcessStart

_KILL_SECONDS = 5.0  # for the kernel to end a process; one that waits for a broken disk or driver may never end
_DUMP_SECONDS = 1.0  # for a process to say what it holds
_LAUNCH = "launch"  # the stage before a process has named one: the interpreter starts, and imports its module

logger = logging.getLogger("embedline.supervisor")


class Need(enum.Enum):
    """The time for which a process of its role must be there."""

    ALWAYS = enum.auto()
    ONCE = enum.auto()  # until one was ready for the first time
    NEVER = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A process to start.

    to_be_ready    whether the server is ready only while a process of this role is
    to_go_on       whether the server ends where none can be started; else it goes on trying
    oom_score      what is added to the supervisor's own: when memory runs out the kernel kills the highest
    takes_state    whether it is sent each STATE of the server
    inside         the other roles whose work it does, in the order in which they stop
    early          the process itself, where it was started before this was planned
    """

    role: str
    index: int = 0
    module: str
    python: str = sys.executable  # the interpreter
    start: Any  # what START says to its role: a dataclass of the role's package
    fds: tuple[int, ...]  # inherited, under the same numbers
    log_level: str = "info"
    json_output: bool = False  # whether it logs JSON
    model: int | None = None  # index of the one model it serves; None = all of them
    to_be_ready: Need = Need.ALWAYS
    to_go_on: Need = Need.ALWAYS
    oom_score: int = 0
    takes_state: bool = False
    inside: tuple[str, ...] = ()
    early: Spawned | None = None

    @property
    def title(self) -> str:
        """The title that `ps` shows, after "embedline: "."""
        return f"{self.role} {self.index}"

    @property
    def titles_of_parts(self) -> tuple[str, ...]:
        """Its title, and those that the processes of the other roles would have whose work it does."""
        return (self.title, *(f"{role} {self.index}" for role in self.inside))


class SpawnError(Exception):
    """The system could not start a process; one line that says which and why."""


class ChildEvents(Protocol):
    """The events that a child process reports."""

    def child_ready(self, child: "ChildProcess", info: Json) -> None:
        """Note that the process serves."""

    def state_seen(self, child: "ChildProcess") -> None:
        """It has applied the newest state."""

    def child_exited(self, child: "ChildProcess", returncode: int) -> None:
        """It is gone and reaped."""

    def metrics_arrived(self, deltas: Json) -> None:
        """Note that the process sent counts."""

    def answer(self, child: "ChildProcess", what: str) -> Json:
        """Answer a request of the child."""
        ...


@dataclass(slots=True)
class _Run:
    """One life of the process."""

    process: subprocess.Popen[bytes]
    pidfd: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    connection: FrameConnection | None = None
    is_killed: bool = False
    has_spoken: bool = False  # so it has its signal handlers
    dumped: asyncio.Future[Json] | None = None  # what it says it holds, once it was asked


class ChildProcess:
    """A process and its state.

    is_ready   it said READY and has not died since
    stage      what it does of its start, None once it is ready; of a process that has ended, what it did then
    failure    the message of its FAILED, None otherwise
    last_beat  time.monotonic() of its last sign of life
    busy       what an engine computes: {"batch", "tokens", "since", "streams"}, None while idle
    seen       number of the newest STATE that it has applied; 0 = none
    was_killed of a process that has ended, whether it was killed from here: it was stuck, or the server stops at once
    """

    def __init__(self, plan: Plan, events: ChildEvents) -> None:
        self.plan = plan
        self.is_ready = False
        self.stage: str | None = None
        self.failure: str | None = None
        self.last_beat = 0.0
        self.busy: Json | None = None
        self.seen = 0
        self.was_killed = False
        self._events = events
        self._early = plan.early  # None once it was used
        self._run: _Run | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return self._run.process.pid if self._run else None

    @property
    def is_dying(self) -> bool:
        """Whether it was killed and the kernel has not ended it yet."""
        return self._run is not None and self._run.is_killed

    async def start(self) -> None:
        """Start the process and send it START. Raises SpawnError, and then nothing is left of the attempt."""
        try:
            run, ours = self._launch()
        except OSError as error:
            raise SpawnError(f"{self.plan.title} can't be started: {self.plan.python}: {error.strerror}") from None
        self._run = run
        self.is_ready, self.stage, self.failure, self.busy, self.seen = False, _LAUNCH, None, None, 0
        self.last_beat = time.monotonic()
        _, run.connection = await self._loop.create_unix_connection(
            lambda: FrameConnection(self._received, lambda _: None), sock=ours
        )
        plan = self.plan
        common = ProcessStart(
            title=plan.title, index=plan.index, log_level=plan.log_level, json_output=plan.json_output
        )
        run.connection.send(control.START, 0, control.encode_start(common, plan.start))

    def excuse_silence(self, now: float) -> None:
        """Count its silence from `now`: the supervisor itself was asleep before."""
        self.last_beat = max(self.last_beat, now)

    def send_state(self, number: int, state: Json) -> None:
        """Send it the state of the server; `state_seen` follows."""
        if self._run and self._run.connection:
            self._run.connection.send(control.STATE, number, control.encode(state))

    def kill(self) -> None:
        """Kill the process with SIGKILL; `child_exited` follows."""
        if self._run:
            self._run.is_killed = True
            self._send_signal(self._run, signal.SIGKILL)

    async def dump(self) -> Json | None:
        """Let it write the stacks of its threads to standard error. What it holds, None if it does not say."""
        run = self._run
        if run is None or run.connection is None or not run.has_spoken:
            return None
        run.dumped = self._loop.create_future()
        self._send_signal(run, signal.SIGUSR1)
        run.connection.send(control.DUMP, 0, control.encode({}))
        try:
            async with asyncio.timeout(_DUMP_SECONDS):
                return await run.dumped
        except TimeoutError:
            return None

    async def stop(self, seconds: float) -> bool:
        """Ask it to end and wait; kill it after so long, or at once while it is still loading.

        False if it had to be killed while it may have held requests.
        """
        run = self._run
        if run is None:
            return True
        if not self.is_ready or run.connection is None:
            await self._kill_and_wait(run)
            return True
        run.connection.send(control.STOP, 0, control.encode({}))
        try:
            async with asyncio.timeout(seconds):
                await run.ended.wait()
        except TimeoutError:
            await self._kill_and_wait(run)
            return False
        return True

    async def _kill_and_wait(self, run: _Run) -> None:
        self.kill()
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                await run.ended.wait()
        except TimeoutError:
            logger.error("%s (process %d) can't be killed and is left behind", self.plan.title, run.process.pid)

    def _send_signal(self, run: _Run, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and is about to be noted
            signal.pidfd_send_signal(run.pidfd, number)

    def _launch(self) -> tuple[_Run, socket.socket]:
        """The process, and our end of its control channel. Raises OSError, and then nothing is left of it."""
        spawned = self._early or spawn(self.plan.python, self.plan.module, self.plan.fds)
        self._early = None
        with contextlib.ExitStack() as undo:
            undo.callback(spawned.end)
            pidfd = os.pidfd_open(spawned.process.pid)
            undo.callback(os.close, pidfd)
            run = _Run(spawned.process, pidfd)
            self._loop.add_reader(pidfd, self._reap, run)
            undo.pop_all()
        _offer_to_oom_killer(spawned.process.pid, self.plan.oom_score)
        return run, spawned.channel

    def _reap(self, run: _Run) -> None:
        """The pidfd is readable: the process has ended, even if its sockets are still open."""
        self._loop.remove_reader(run.pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(run.process.pid, signal.SIGKILL)  # a pool's workers, say, that hold its connections open
        returncode = run.process.wait()
        # what it sent before it ended is still unread: its last STAGE or FAILED, and its last counts
        self._loop.call_soon(self._finish, run, returncode)

    def _finish(self, run: _Run, returncode: int) -> None:
        if run.connection:
            run.connection.close()
        os.close(run.pidfd)
        self._run = None
        self.is_ready, self.busy, self.was_killed = False, None, run.is_killed
        run.ended.set()
        self._events.child_exited(self, returncode)

    def _received(self, connection: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        fields = control.decode(payload)
        self.last_beat = time.monotonic()
        if self._run:
            self._run.has_spoken = True
        if kind == control.HEARTBEAT:
            self.busy = fields.get("busy")
            if "metrics" in fields:
                self._events.metrics_arrived(fields["metrics"])
        elif kind == control.STAGE:
            self.stage = fields["stage"]
        elif kind == control.READY:
            self.is_ready, self.stage = True, None
            self._events.child_ready(self, fields)
        elif kind == control.SEEN:
            self.seen = frame_id
            self._events.state_seen(self)
        elif kind == control.FAILED:
            self.failure = fields["message"]
        elif kind == control.DUMPED:
            if self._run and self._run.dumped and not self._run.dumped.done():
                self._run.dumped.set_result(fields)
        elif kind == control.REQUEST:
            connection.send(control.REPLY, frame_id, control.encode(self._events.answer(self, fields["what"])))


def _offer_to_oom_killer(pid: int, score: int) -> None:
    """Let the kernel kill it before this process. Whoever may start a process may raise its score."""
    try:
        own = int(Path("/proc/self/oom_score_adj").read_text())
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(1000, own + score)))
    except OSError as error:
        logger.debug("process %d keeps its oom_score_adj: %s", pid, error.strerror)
