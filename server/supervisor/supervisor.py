"""Starts all processes, watches them, restarts those that die, and stops them in reverse order.

The first process of the server and the only one that acts on signals. It computes nothing and holds
no request, so that it answers when anything else is stuck.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.metrics.gauges import ModelGauges, ServerGauges
from server.metrics.processes import ProcessGauges, ProcessState
from server.metrics.registry import Registry
from server.requests.admission.expected_wait import expected_wait
from server.supervisor.child import ChildProcess, SpawnError
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
    message: str  # the last line of the log; "" = none


class Supervisor:
    """The running server. `run` returns the exit code of the whole server."""

    def __init__(self, topology: Topology, models: Sequence[ModelPlan], *, limits: Json, watchdog: Watchdog) -> None:
        self._topology = topology
        self._watchdog = watchdog
        self._children = [ChildProcess(plan, self) for plan in topology.plans()]
        self._readiness = Readiness(self._children, models, page=topology.page, limits=limits)
        self._restarts = Restarts()
        self._exit: asyncio.Future[_Ending] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
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

    async def run(self, shutdown_seconds: float) -> int:
        """Serve until a signal, or until a process that is needed can't be started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        try:
            for child in self._children:
                await child.start()
        except SpawnError as error:
            self._end(_EXIT_SETTINGS, str(error))
        watching = loop.create_task(self._watchdog.run(self._children))
        ending = await self._exit
        watching.cancel()
        await self._stop(shutdown_seconds)
        if ending.message:
            logger.critical("%s", ending.message)
        return ending.code

    def why_not_ready(self) -> str | None:
        """None when a request sent now would be computed."""
        return self._readiness.why_not_ready()

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

    def child_exited(self, child: ChildProcess, returncode: int) -> None:
        """It is gone; start it again unless the server is stopping or it never starts."""
        if child.failure is not None and not self._restarts.has_served(child):
            self._end(_EXIT_SETTINGS, child.failure)
        self._forget(child)
        self._lost(child, child.failure or _reason(returncode))

    def metrics_arrived(self, deltas: Json) -> None:
        """It sent counts."""
        self.metrics.absorb(deltas)

    def answer(self, child: ChildProcess, what: str) -> Json:
        """Answer a request of the child."""
        if what == Request.STATE:
            return self._readiness.state_for(child)
        assert what == Request.METRICS
        return {"text": self.metrics.text()}

    def _forget(self, child: ChildProcess) -> None:
        """Clear a dead process's cells on the shared page and its gauges."""
        self.metrics.forget(child.plan.title)
        if child.plan.role == "frontend":
            self._topology.page.clear_frontend(child.plan.index)
        elif child.plan.role == "batch manager":
            self._topology.page.clear_manager(child.plan.index)

    def _lost(self, child: ChildProcess, reason: str) -> None:
        """A process has died or could not be started."""
        if self._exit.done():
            return
        title, role = child.plan.title, child.plan.role
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
        if self._exit.done():
            return
        try:
            await child.start()
        except SpawnError as error:
            self._lost(child, str(error))

    def _end(self, code: int, message: str = "") -> None:
        if not self._exit.done():
            self._exit.set_result(_Ending(code, message))

    def _signalled(self) -> None:
        """The first signal stops in order, the second at once."""
        if self._exit.done():
            for child in self._children:
                child.kill()
            return
        logger.info("stopping")
        self._end(0)
        self._readiness.stopping()

    def _hung_up(self) -> None:
        """The terminal closed. This may come twice, and must not stop the server at once."""
        if not self._exit.done():
            self._signalled()

    async def _stop(self, seconds: float) -> None:
        """Frontends first, with time to finish their requests; the others have no work then. Engines last."""
        self._topology.stop_listening()
        for role in reversed(ROLES):
            patience = seconds + _EXIT_SECONDS if role == "frontend" else _EXIT_SECONDS
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
