"""Starts all processes, watches them, restarts those that die, and stops them in reverse order.

The first process of the server and the only one that acts on signals. It computes nothing and holds
no request, so that it answers when anything else is stuck. `Restarts` says how long to wait before a dead process is
started again, and when to give up; `dump` writes the stacks and queues of all processes to the log.

`Watchdog` kills processes that are alive but stuck, so that they are restarted: the heartbeat tells busy from stuck.
`Shutdown` is the end of the server, decided once, by a signal, a successor or a fault: who has connected is let in, and
nobody after that; frontends end first, engines last.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from server.metrics.gauges import ModelGauges, ProcessGauges, ProcessState, ServerGauges
from server.metrics.registry import Registry
from server.requests.admission import expected_wait
from server.settings.settings import Settings
from server.supervisor.child import ChildProcess, Need, SpawnError
from server.supervisor.listeners import Listeners, UnixPort
from server.supervisor.model_plan import ModelPlan
from server.supervisor.readiness import Readiness, roles_of
from server.supervisor.topology import Topology
from wire import control
from wire.control import ControlRequest, Json
from wire.page import Page
from wire.process import waiting_tasks

_HANDSHAKE_SECONDS = 0.2  # for handshakes that have begun
_QUEUE_SECONDS = 5.0  # for frontends to accept what waits; under load it takes milliseconds
_LOOK_SECONDS = 0.01  # the kernel tells nobody that a queue has become empty
_EXIT_SECONDS = 5.0  # to refuse what can't be finished, and to exit

logger = logging.getLogger("embedline.supervisor")

_LOADING_FACTOR = 12  # imports and loading may hold the interpreter for long
_SLOWER_THAN_PREDICTED = 3  # times what a batch's tokens should take; more is stuck

_DELAYS = (0.0, 0.5, 2.0, 5.0, 15.0)  # seconds before the first, second, … start in a row that never became ready
# A fault in the program ends with one of these signals, most likely each time that it comes to the same place. SIGKILL
# is not one: it comes from the watchdog, or from the kernel when memory runs out.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}
_SHORT_LIFE_SECONDS = 5.0  # a process that was ready for less may not be healthy …
_SHORT_LIFE_DELAY = 0.5  # … so its restarts are not all immediate
_EXIT_FAILED = 1
_EXIT_SETTINGS = 2


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the server."""

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
        settings: Settings,
        *,
        http: Sequence[Listeners | UnixPort],
        limits: Json,
        accepts_at_once: bool = True,
    ) -> None:
        """`http` have the topology's sockets. `accepts_at_once`: connections are accepted before models are loaded."""
        self.on_ready: Callable[[], None] = lambda: None
        self.on_stopping: Callable[[], None] = lambda: None
        self._topology = topology
        self._watchdog = Watchdog(
            topology.page, heartbeat_timeout=settings.heartbeat_timeout, batch_timeout=settings.batch_timeout
        )
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

    async def run(self, *, drain_delay: float, shutdown_seconds: float, early: Sequence[int] = ()) -> int:
        """Serve until a signal, until another server takes over, or until a needed process can't be started.

        After SIGTERM connections are accepted for `drain_delay` more seconds; then open requests have
        `shutdown_seconds` to finish. `early`: numbers of signals that came before.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._signalled, drain_delay)
        loop.add_signal_handler(signal.SIGINT, self._signalled)  # somebody at a terminal, whom no balancer knows
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        loop.add_signal_handler(signal.SIGUSR1, lambda: self._spawn(dump(self._children, self._topology.page)))
        for number in early:
            signal.raise_signal(number)
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
        """The reason why the server is not ready; None when a request sent now would be computed."""
        return self._readiness.why_not_ready()

    @property
    def was_ready(self) -> bool:
        """Whether it was ready at any time."""
        return self._readiness.was_ready

    def pids(self) -> list[int]:
        """The ids of all processes, this one included."""
        return [os.getpid(), *(child.pid for child in self._children if child.pid is not None)]

    def taken_over(self, pid: int) -> None:
        """End in order, without delay: another server accepts on the same sockets from now on."""
        logger.info("process %d has taken over", pid)
        self._begin_to_stop(Ending(0))
        self._shutdown.hurry.set()

    def stop(self) -> None:
        """End in order, without delay: nobody needs the server any more."""
        self._begin_to_stop(Ending(0))

    def count_dropped_lines(self, number: int) -> None:
        """Count lines of the log that found no room."""
        self.metrics.count("embedline_log_lines_dropped_total", by=number)

    # ChildEvents

    def child_ready(self, child: ChildProcess, info: Json) -> None:
        """Note that the process serves."""
        logger.info("%s is ready", child.plan.title)
        self._restarts.succeeded(child, time.monotonic())
        self._readiness.child_ready(child, info)
        self._readiness.send()

    def state_seen(self, child: ChildProcess) -> None:
        """It has applied the newest state."""
        self._readiness.log()
        self._note_ready()

    def child_exited(self, child: ChildProcess, returncode: int) -> None:
        """It is gone; start it again unless the server is stopping or it never starts."""
        if child.failure is not None and not self._restarts.has_served(child):
            self._end(_EXIT_SETTINGS, child.failure)
        self._forget(child, returncode)
        how = _how_it_ended(child, returncode)
        self._readiness.ended(child, how)
        self._lost(child, child.failure or how, returncode)

    def metrics_arrived(self, deltas: Json) -> None:
        """Note that the process sent counts."""
        self.metrics.absorb(deltas)
        self._note_ready()  # what a batch manager writes on the page comes without a message

    def answer(self, child: ChildProcess, what: str) -> Json:
        """Answer a request of the child."""
        if what == ControlRequest.STATE:
            return self._readiness.state_for(child)
        assert what == ControlRequest.METRICS
        return {"text": self.metrics.text()}

    def _note_ready(self) -> None:
        if not self._is_noted and self.why_not_ready() is None:
            self._is_noted = True
            self._readiness.accept()
            self.on_ready()

    def _forget(self, child: ChildProcess, returncode: int) -> None:
        """Clear a dead process's cells on the shared page and its gauges, and those of the parts inside it."""
        plan = child.plan
        for title in plan.titles_of_parts:
            self.metrics.forget(title)
        if plan.role == "frontend":
            self._topology.page.clear_frontend(plan.index)
            if returncode == -signal.SIGKILL and not child.was_killed:  # by the kernel, or by hand: no text is to blame
                self._topology.page.tokenizing[plan.index] = 0
        if "batch manager" in (plan.role, *plan.inside):
            self._topology.page.clear_manager(plan.index)

    def _lost(self, child: ChildProcess, reason: str, returncode: int | None = None) -> None:
        """A process has died, or could not be started and has no returncode."""
        title, role = child.plan.title, child.plan.role
        if role not in self._shutdown.restarted_roles:
            return
        logger.error("%s has ended: %s", title, reason)
        delay = self._restarts.failed(child, time.monotonic(), returncode)
        need = child.plan.to_go_on
        is_needed = need is Need.ALWAYS or (need is Need.ONCE and not self._restarts.has_served(child))
        if self._restarts.has_given_up(child) and is_needed and not self._has_stand_in(child):
            self._end(_EXIT_FAILED, f"{title} can't be started: {reason}")
            return
        self.metrics.count("embedline_process_restarts_total", role)
        self._readiness.send()
        self._spawn(self._start_again(child, delay))

    def _has_stand_in(self, child: ChildProcess) -> bool:
        """Whether another process does the same work, or is still being restarted."""
        work = child.plan.role, child.plan.model
        others = (other for other in self._children if other is not child)
        return any((o.plan.role, o.plan.model) == work and not self._restarts.has_given_up(o) for o in others)

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


class Shutdown:
    """Call `begin`; then `drain`, `stop_frontends` and `stop_others` once `ending` has a result.

    restarted_roles  of whose processes those that die are started again: while the server stops fewer and fewer
    """

    def __init__(self, children: Sequence[ChildProcess], http: Sequence[Listeners | UnixPort]) -> None:
        self._roles = roles_of(children)
        self.restarted_roles = set(self._roles)
        self.ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._children = children
        self._http = http
        self.hurry = asyncio.Event()  # nobody needs the server to go on accepting

    @property
    def has_begun(self) -> bool:
        """Whether it is decided."""
        return self.ending.done()

    def begin(self, ending: Ending) -> bool:
        """Decide how the server ends. False where that was done before."""
        if self.has_begun:
            return False
        self.ending.set_result(ending)
        return True

    def kill(self) -> None:
        """End all processes at once."""
        self.restarted_roles.clear()
        self.hurry.set()
        for child in self._children:
            child.kill()

    async def drain(self, delay: float, *, was_ready: bool) -> None:
        """Serve on for so long, as balancers go on sending for a while. Then let nobody in any more."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.hurry.wait(), delay)
        if was_ready:
            await empty_queues(self._http, is_worth_waiting=lambda: "frontend" in self.restarted_roles)

    async def stop_frontends(self, seconds: float) -> None:
        """Stop frontends, which have so long to finish. Until then the processes that compute are restarted."""
        for port in self._http:  # a port closes with the last frontend that serves it
            port.close()
        self.restarted_roles.discard("frontend")
        await self._stop_role("frontend", seconds + _EXIT_SECONDS)

    async def stop_others(self) -> None:
        """Stop the other processes, which have no work any more, engines last."""
        self.restarted_roles.clear()
        for role in reversed([role for role in self._roles if role != "frontend"]):
            await self._stop_role(role, _EXIT_SECONDS)

    async def _stop_role(self, role: str, patience: float) -> None:
        children = [child for child in self._children if child.plan.role == role]
        ended = await asyncio.gather(*(child.stop(patience) for child in children))
        if not all(ended):
            logger.error("%d %s process(es) had to be killed after %g s", ended.count(False), role, patience)


async def empty_queues(ports: Sequence[Listeners | UnixPort], *, is_worth_waiting: Callable[[], bool]) -> None:
    """Begin no more handshakes, and wait until the frontends have accepted every connection.

    Where another process goes on serving the sockets there is nothing to do.
    """
    closing = [port for port in ports if not port.kept_elsewhere]
    if not closing:
        return
    for port in closing:
        try:
            port.refuse_new()
        except OSError as error:  # a sandbox that does not know socket filters, such as gVisor
            logger.warning("who connects while the port closes may be reset: %s", error.strerror)
    await asyncio.sleep(_HANDSHAKE_SECONDS)
    deadline = time.monotonic() + _QUEUE_SECONDS
    while num_waiting := sum(port.num_waiting() for port in closing):
        if time.monotonic() > deadline or not is_worth_waiting():
            logger.error("%d connection(s) are reset: no frontend accepted them", num_waiting)
            return
        await asyncio.sleep(_LOOK_SECONDS)


class Watchdog:
    """Kills a process that is silent for `heartbeat_timeout` seconds, or whose batch takes more than `batch_timeout`
    seconds and three times what its tokens should take.
    """

    def __init__(self, page: Page, *, heartbeat_timeout: float, batch_timeout: float) -> None:
        self._page = page
        self._heartbeat_timeout = heartbeat_timeout
        self._batch_timeout = batch_timeout

    async def run(self, children: Sequence[ChildProcess]) -> None:
        """Check all children twice a second until cancelled."""
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(control.HEARTBEAT_SECONDS)
            now = time.monotonic()
            was_asleep = now - looked_at > 2 * control.HEARTBEAT_SECONDS  # so silence means nothing
            looked_at = now
            for child in children:
                if was_asleep:
                    child.excuse_silence(now)
                elif child.pid is not None and not child.is_dying and (why := self.why_stuck(child, now)):
                    logger.error("%s is stuck and will be killed: %s", child.plan.title, why)
                    child.kill()

    def why_stuck(self, child: ChildProcess, now: float) -> str | None:
        """The reason why the process is stuck; None while it is not."""
        patience = self._heartbeat_timeout * (1 if child.is_ready else _LOADING_FACTOR)
        if now - child.last_beat > patience:
            return f"no heartbeat for {now - child.last_beat:.1f} s"
        if child.busy is not None:
            seconds = now - child.busy["since"]
            if seconds > self._longest_batch(child):
                return f"the same batch for {seconds:.1f} s"
        return None

    def _longest_batch(self, child: ChildProcess) -> float:
        """In seconds, by the slowest batch manager. The page has the rate of a manager's engines together, and a batch
        has one stream of its engine's."""
        assert child.busy is not None
        model = slice(None) if child.plan.model is None else child.plan.model
        rates = self._page.tokens_per_second[:, model] / np.maximum(self._page.engines_ready[:, model], 1)
        slowest = float(rates[rates > 0].min(initial=float("inf")))
        num_tokens, streams = int(child.busy["tokens"]), int(child.busy["streams"])
        return max(self._batch_timeout, _SLOWER_THAN_PREDICTED * num_tokens * streams / slowest)


class Restarts:
    """Counts the failures of each process. Times are time.monotonic() seconds."""

    def __init__(self) -> None:
        self._failures: dict[ChildProcess, int] = {}  # starts in a row that never became ready
        self._short_lives: dict[ChildProcess, int] = {}  # in a row
        self._ready_at: dict[ChildProcess, float] = {}  # of the present life
        self._has_served: set[ChildProcess] = set()
        self._faults: dict[ChildProcess, tuple[int, str | None] | None] = {}  # signal and stage of the last death

    def succeeded(self, child: ChildProcess, now: float) -> None:
        """Note that the process became ready."""
        self._ready_at[child] = now
        self._failures[child] = 0
        self._has_served.add(child)

    def has_served(self, child: ChildProcess) -> bool:
        """Whether it was ever ready."""
        return child in self._has_served

    def has_given_up(self, child: ChildProcess) -> bool:
        """Whether so many starts in a row failed, or two by the same fault in the same stage where it was never ready,
        that the next one most likely fails too."""
        return self._failures.get(child, 0) >= len(_DELAYS)

    def failed(self, child: ChildProcess, now: float, returncode: int | None = None) -> float:
        """It died, or could not be started and has no returncode. Returns the seconds to wait before the next start."""
        ready_at = self._ready_at.pop(child, None)
        if ready_at is None:
            failures = self._failures.get(child, 0) + 1
            if self._is_same_fault(child, returncode) and not self.has_served(child):
                failures = max(failures, len(_DELAYS))
            self._failures[child] = failures
            return _DELAYS[min(failures, len(_DELAYS)) - 1]
        is_short = now - ready_at < _SHORT_LIFE_SECONDS
        self._short_lives[child] = self._short_lives.get(child, 0) + 1 if is_short else 0
        return _SHORT_LIFE_DELAY if self._short_lives[child] > 1 else 0.0

    def _is_same_fault(self, child: ChildProcess, returncode: int | None) -> bool:
        """Whether it died as it did the last time, by a fault of the program."""
        before = self._faults.get(child)
        fault = None if returncode is None or -returncode not in _FAULTS else (-returncode, child.stage)
        self._faults[child] = fault
        return fault is not None and fault == before


async def dump(children: Sequence[ChildProcess], page: Page) -> None:
    """Takes up to a second for each process that is stuck."""
    logger.warning("SIGUSR1: stacks and queues of this process and of %d others follow", len(children))
    logger.warning("supervisor holds %s", json.dumps({"page": _page(page), "tasks": waiting_tasks()}))
    # Written in Python: the interpreter lets go of its lock, so the thread that reads standard error goes on.
    stacks = {number: "".join(traceback.format_stack(frame)) for number, frame in sys._current_frames().items()}
    sys.stderr.write("".join(f"Thread {n:#x} (most recent call last):\n{text}" for n, text in stacks.items()))
    for child in children:
        logger.warning("%s: %s; its stacks:", child.plan.title, _condition(child))
        held = await child.dump()
        logger.warning("%s holds %s", child.plan.title, "no answer" if held is None else json.dumps(held))
    logger.warning("SIGUSR1: that is all")


def _condition(child: ChildProcess) -> str:
    if child.pid is None:
        return "does not run"
    age = time.monotonic() - child.last_beat
    condition = "dying" if child.is_dying else "ready" if child.is_ready else "starting"
    return f"process {child.pid}, {condition}, last heartbeat {age:.1f} s ago"


def _page(page: Page) -> dict[str, object]:
    """The page's numbers: tokens and engines by batch manager or frontend, model, and class."""
    return {
        "queued_tokens": page.queued_tokens.tolist(),
        "admitted_tokens": page.admitted_tokens.tolist(),
        "kept_back_tokens": page.kept_back_tokens.sum(axis=-1).tolist(),
        "engines_ready": page.engines_ready.tolist(),
        "tokens_per_second": page.tokens_per_second.round(1).tolist(),
    }
