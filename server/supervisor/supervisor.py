"""Starts all processes, watches them, restarts those that die, and stops them in reverse order.

The first process of the server and the only one that acts on signals. It computes nothing and holds
no request, so that it answers when anything else is stuck.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.metrics.gauges import ModelGauges, ServerGauges
from server.metrics.processes import ProcessGauges, ProcessState
from server.metrics.registry import Registry
from server.requests.admission.expected_wait import expected_wait
from server.supervisor.child import ChildProcess, SpawnError
from server.supervisor.dump import dump
from server.supervisor.listening.drain import empty_queues
from server.supervisor.listening.listeners import Listeners
from server.supervisor.listening.unix_port import UnixPort
from server.supervisor.model_plan import ModelPlan
from server.supervisor.readiness import ROLES, Readiness
from server.supervisor.restarts import Restarts
from server.supervisor.topology import Topology
from server.supervisor.watchdog import Watchdog
from wire.control import Json, Request

_EXIT_FAILED = 1
_EXIT_SETTINGS = 2
_EXIT_SECONDS = 5.0  # to refuse what can't be finished, and to exit

logger = logging.getLogger("embedline.supervisor")


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the server ends."""

    code: int  # of the process
    message: str = ""  # the last line of the log; "" = none
    delay: float = 0.0  # seconds in which it goes on accepting connections


class Supervisor:
    """The running server. `run` returns the exit code of the whole server.

    on_ready     called once, when a request would be computed for the first time
    on_stopping  called once, when the server begins to drain or is about to end
    """

    def __init__(
        self,
        topology: Topology,
        models: Sequence[ModelPlan],
        *,
        http: Sequence[Listeners | UnixPort],
        limits: Json,
        watchdog: Watchdog,
        accepts_at_once: bool = True,
    ) -> None:
        """`http` have the topology's sockets. `accepts_at_once`: connections are accepted before models are loaded."""
        self.on_ready: Callable[[], None] = lambda: None
        self.on_stopping: Callable[[], None] = lambda: None
        self._topology = topology
        self._http = http
        self._watchdog = watchdog
        self._children = [ChildProcess(plan, self) for plan in topology.plans()]
        self._readiness = Readiness(
            self._children, models, page=topology.page, limits=limits, accepts_at_once=accepts_at_once
        )
        self._restarts = Restarts()
        self._restarted_roles = set(ROLES)  # while the server drains fewer and fewer of them
        self._exit: asyncio.Future[_Ending] = asyncio.get_running_loop().create_future()
        self._hurry = asyncio.Event()  # ends the time in which a server that stops goes on accepting
        self._is_noted = False  # whether `on_ready` was called
        self._tasks = set[asyncio.Task[None]]()
        self.metrics = Registry(
            [
                ServerGauges(
                    topology.page,
                    [m.name for m in models],
                    is_ready=lambda: self._readiness.why_not_ready() is None,
                    expected_wait=expected_wait,
                ),
                ModelGauges(lambda: self._readiness.state()["models"]),
                ProcessGauges(lambda: [_seen(child) for child in self._children]),
            ]
        )

    async def run(self, *, drain_delay: float, shutdown_seconds: float) -> int:
        """Serve until a signal, until another server takes over, or until a needed process can't be started.

        After SIGTERM connections are accepted for `drain_delay` more seconds; then open requests have
        `shutdown_seconds` to finish.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._signalled, drain_delay)
        loop.add_signal_handler(signal.SIGINT, self._signalled)  # somebody at a terminal, whom no balancer knows
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        loop.add_signal_handler(signal.SIGUSR1, lambda: self._spawn(dump(self._children, self._topology.page)))
        try:
            for child in self._children:
                await child.start()
        except SpawnError as error:
            self._end(_EXIT_SETTINGS, str(error))
        watching = loop.create_task(self._watchdog.run(self._children))
        ending = await self._exit
        await self._drain(ending.delay)
        await self._stop_frontends(shutdown_seconds)
        watching.cancel()
        await self._stop_others()
        if ending.message:
            logger.critical("%s", ending.message)
        return ending.code

    def why_not_ready(self) -> str | None:
        """None when a request sent now would be computed."""
        return self._readiness.why_not_ready()

    @property
    def was_ready(self) -> bool:
        """Whether it was ready at any time."""
        return self._readiness.was_ready

    def pids(self) -> list[int]:
        """Of all processes, this one included."""
        return [os.getpid(), *(child.pid for child in self._children if child.pid is not None)]

    def taken_over(self, pid: int) -> None:
        """Another server accepts on the same sockets from now on: end in order, without delay."""
        logger.info("process %d has taken over", pid)
        self._begin_to_stop(_Ending(0))
        self._hurry.set()

    def count_dropped_lines(self, number: int) -> None:
        """Lines of the log found no room."""
        self.metrics.count("embedline_log_lines_dropped_total", by=number)

    # ChildEvents

    def child_ready(self, child: ChildProcess, info: Json) -> None:
        """It serves."""
        logger.info("%s is ready", child.plan.title)
        self._restarts.succeeded(child, time.monotonic())
        if child.plan.role == "engine":
            self._readiness.engine_loaded(child, info)
        self._readiness.send()

    def state_seen(self, child: ChildProcess) -> None:
        """It has applied the newest state."""
        self._readiness.log()
        self._note_ready()

    def child_exited(self, child: ChildProcess, returncode: int) -> None:
        """It is gone; start it again unless the server is stopping or it never starts."""
        if child.failure is not None and not self._restarts.has_served(child):
            self._end(_EXIT_SETTINGS, child.failure)
        self._forget(child)
        self._lost(child, child.failure or _reason(returncode))

    def metrics_arrived(self, deltas: Json) -> None:
        """It sent counts."""
        self.metrics.absorb(deltas)
        self._note_ready()  # what a batch manager writes on the page comes without a message

    def answer(self, child: ChildProcess, what: str) -> Json:
        """Answer a request of the child."""
        if what == Request.STATE:
            return self._readiness.state_for(child)
        assert what == Request.METRICS
        return {"text": self.metrics.text()}

    def _note_ready(self) -> None:
        if not self._is_noted and self.why_not_ready() is None:
            self._is_noted = True
            self._readiness.accept()
            self.on_ready()

    def _forget(self, child: ChildProcess) -> None:
        """Clear a dead process's cells on the shared page and its gauges."""
        self.metrics.forget(child.plan.title)
        if child.plan.role == "frontend":
            self._topology.page.clear_frontend(child.plan.index)
        elif child.plan.role == "batch manager":
            self._topology.page.clear_manager(child.plan.index)

    def _lost(self, child: ChildProcess, reason: str) -> None:
        """A process has died or could not be started."""
        title, role = child.plan.title, child.plan.role
        if role not in self._restarted_roles:
            return
        logger.error("%s has ended: %s", title, reason)
        delay = self._restarts.failed(child, time.monotonic())
        if self._restarts.has_given_up(child) and not self._has_stand_in(child):
            self._end(_EXIT_FAILED, f"{title} can't be started: {reason}")
            return
        self.metrics.count("embedline_process_restarts_total", role)
        self._readiness.send()
        self._spawn(self._start_again(child, delay))

    def _has_stand_in(self, child: ChildProcess) -> bool:
        """Whether another process does the same work, or is still being restarted."""
        same = [
            other
            for other in self._children
            if (other.plan.role, other.plan.model) == (child.plan.role, child.plan.model)
        ]
        return any(other is not child and not self._restarts.has_given_up(other) for other in same)

    async def _start_again(self, child: ChildProcess, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        if child.plan.role not in self._restarted_roles:
            return
        try:
            await child.start()
        except SpawnError as error:
            self._lost(child, str(error))

    def _end(self, code: int, message: str) -> None:
        if not self._exit.done():
            self._exit.set_result(_Ending(code, message))
            self.on_stopping()

    def _signalled(self, delay: float = 0.0) -> None:
        """The first signal stops in order, the second at once."""
        if self._exit.done():
            self._restarted_roles.clear()
            self._hurry.set()
            for child in self._children:
                child.kill()
            return
        self._begin_to_stop(_Ending(0, delay=delay if self._readiness.was_ready else 0.0))

    def _begin_to_stop(self, ending: _Ending) -> None:
        if self._exit.done():
            return
        more = f"; connections are accepted for {ending.delay:g} s more" if ending.delay else ""
        logger.info("stopping%s", more)
        self._exit.set_result(ending)
        self._readiness.stopping()
        self.on_stopping()

    def _hung_up(self) -> None:
        """The terminal closed. This may come twice, and must not stop the server at once."""
        if not self._exit.done():
            self._signalled()

    async def _drain(self, delay: float) -> None:
        """Serve on for so long, as balancers go on sending for a while. Then let nobody in any more."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), delay)
        if self._readiness.was_ready:
            await empty_queues(self._http, is_worth_waiting=lambda: "frontend" in self._restarted_roles)

    async def _stop_frontends(self, seconds: float) -> None:
        """They have so long to finish their requests. Until then the processes that compute them are restarted."""
        for port in self._http:  # a port closes with the last frontend that serves it
            port.close()
        self._restarted_roles.discard("frontend")
        await self._stop_role("frontend", seconds + _EXIT_SECONDS)

    async def _stop_others(self) -> None:
        """They have no work any more. Engines last."""
        self._restarted_roles.clear()
        for role in reversed(ROLES[:-1]):
            await self._stop_role(role, _EXIT_SECONDS)

    async def _stop_role(self, role: str, patience: float) -> None:
        children = [child for child in self._children if child.plan.role == role]
        ended = await asyncio.gather(*(child.stop(patience) for child in children))
        if not all(ended):
            logger.error("%d %s process(es) had to be killed after %g s", ended.count(False), role, patience)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)


def _seen(child: ChildProcess) -> ProcessState:
    return ProcessState(
        title=child.plan.title,
        pid=child.pid,
        is_ready=child.is_ready,
        last_beat=child.last_beat,
        busy_since=child.busy["since"] if child.busy else None,
        is_engine=child.plan.role == "engine",
    )


def _reason(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    return signal.Signals(-returncode).name
