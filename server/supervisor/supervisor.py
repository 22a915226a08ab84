"""Starts all processes, watches them, restarts those that die, and stops them in reverse order.

The first process of the server and the only one that acts on signals. It computes nothing and holds
no request, so that it answers when anything else is stuck.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence

from server.metrics.gauges import ModelGauges, ProcessGauges, ProcessState, ServerGauges
from server.metrics.registry import Registry
from server.requests.load import expected_wait
from server.supervisor.child import ChildProcess, SpawnError
from server.supervisor.dump import dump
from server.supervisor.listening.listeners import Listeners
from server.supervisor.listening.unix_port import UnixPort
from server.supervisor.planning.model_plan import ModelPlan
from server.supervisor.planning.topology import Topology
from server.supervisor.readiness import Readiness
from server.supervisor.restarts import Restarts
from server.supervisor.shutdown import Ending, Shutdown
from server.supervisor.watchdog import Watchdog
from wire.control import Json, Request

_EXIT_FAILED = 1
_EXIT_SETTINGS = 2
_BESIDE = ("jobs", "pipelines")  # without them the server still answers its other routes, and goes on trying

logger = logging.getLogger("embedline.supervisor")


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
        self._watchdog = watchdog
        self._children = [ChildProcess(plan, self) for plan in topology.plans()]
        self._readiness = Readiness(
            self._children, models, page=topology.page, limits=limits, accepts_at_once=accepts_at_once
        )
        self._restarts = Restarts()
        self._shutdown = Shutdown(self._children, http)
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
            ],
            models=[model.name for model in models],
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
        ending = await self._shutdown.ending
        await self._shutdown.drain(ending.delay, was_ready=self._readiness.was_ready)
        await self._shutdown.stop_frontends(shutdown_seconds)
        watching.cancel()
        await self._shutdown.stop_others()
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
        self._begin_to_stop(Ending(0))
        self._shutdown.hurry()

    def stop(self) -> None:
        """Nobody needs it any more: end in order, without delay."""
        self._begin_to_stop(Ending(0))

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
        how = _how_it_ended(child, returncode)
        self._readiness.ended(child, how)
        self._lost(child, child.failure or how, returncode)

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

    def _lost(self, child: ChildProcess, reason: str, returncode: int | None = None) -> None:
        """A process has died, or could not be started and has no returncode."""
        title, role = child.plan.title, child.plan.role
        if role not in self._shutdown.restarted_roles:
            return
        logger.error("%s has ended: %s", title, reason)
        delay = self._restarts.failed(child, time.monotonic(), returncode)
        is_needed = role not in _BESIDE or (role == "pipelines" and not self._restarts.has_served(child))
        if self._restarts.has_given_up(child) and is_needed and not self._has_stand_in(child):
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
        if child.plan.role not in self._shutdown.restarted_roles:
            return
        try:
            await child.start()
        except SpawnError as error:
            self._lost(child, str(error))

    def _end(self, code: int, message: str) -> None:
        if self._shutdown.begin(Ending(code, message)):
            self.on_stopping()

    def _signalled(self, delay: float = 0.0) -> None:
        """The first signal stops in order, the second at once."""
        if self._shutdown.has_begun:
            self._shutdown.kill()
        else:
            self._begin_to_stop(Ending(0, delay=delay if self._readiness.was_ready else 0.0))

    def _begin_to_stop(self, ending: Ending) -> None:
        if not self._shutdown.begin(ending):
            return
        more = f"; connections are accepted for {ending.delay:g} s more" if ending.delay else ""
        logger.info("stopping%s", more)
        self._readiness.stopping()
        self.on_stopping()

    def _hung_up(self) -> None:
        """The terminal closed. This may come twice, and must not stop the server at once."""
        if not self._shutdown.has_begun:
            self._signalled()

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


def _how_it_ended(child: ChildProcess, returncode: int) -> str:
    how = f"exit status {returncode}" if returncode >= 0 else signal.Signals(-returncode).name
    return how if child.stage is None else f'{how} in the stage "{child.stage}"'
