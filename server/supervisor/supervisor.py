"""Starts all processes, watches them, starts again what dies, stops them in reverse order.

The first process of the house and the only one that acts on signals. It computes nothing and holds
no request, so that it answers when anything else is stuck.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.metrics.gauges import Levels, ModelInfo
from server.metrics.processes import ProcessLevels, Seen
from server.metrics.registry import Registry
from server.supervisor.child import Member, SpawnError
from server.supervisor.model_plan import ModelPlan
from server.supervisor.readiness import ROLES, Broadcast
from server.supervisor.restarts import CrashLoop
from server.supervisor.topology import House
from server.supervisor.watchdog import Watchdog
from wire.control import Json, Request

_EXIT_FAILED = 1
_EXIT_SETTINGS = 2
_LAST_WORDS_SECONDS = 5.0  # to say what could not be finished, and to end

logger = logging.getLogger("embedline.supervisor")


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the server ends."""

    code: int  # of the process
    message: str  # the last line of the log; "" = none


class Supervisor:
    """The running house. `run` returns the exit code of the whole server."""

    def __init__(self, house: House, models: Sequence[ModelPlan], *, limits: Json, watchdog: Watchdog) -> None:
        self._house = house
        self._watchdog = watchdog
        self._members = [Member(plan, self) for plan in house.plans()]
        self._broadcast = Broadcast(self._members, models, page=house.page, limits=limits)
        self._crashes = CrashLoop()
        self._exit: asyncio.Future[_Ending] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self.metrics = Registry(
            [
                Levels(house.page, [m.name for m in models], is_ready=lambda: self._broadcast.why_not_ready() is None),
                ModelInfo(lambda: self._broadcast.state()["models"]),
                ProcessLevels(lambda: [_seen(member) for member in self._members]),
            ]
        )

    async def run(self, shutdown_seconds: float) -> int:
        """Serve until a signal or until it makes no sense to go on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        try:
            for member in self._members:
                await member.start()
        except SpawnError as error:
            self._end(_EXIT_SETTINGS, str(error))
        watching = loop.create_task(self._watchdog.run(self._members))
        ending = await self._exit
        watching.cancel()
        await self._stop(shutdown_seconds)
        if ending.message:
            logger.critical("%s", ending.message)
        return ending.code

    def why_not_ready(self) -> str | None:
        """None when a request sent now would be computed."""
        return self._broadcast.why_not_ready()

    # MemberEvents

    def member_ready(self, member: Member, info: Json) -> None:
        """It serves."""
        logger.info("%s is ready", member.plan.title)
        self._crashes.succeeded(member, time.monotonic())
        if member.plan.role == "engine":
            self._broadcast.engine_loaded(member, info)
        self._broadcast.send()

    def state_seen(self, member: Member) -> None:
        """It has taken in the newest state it was sent."""
        self._broadcast.log()

    def member_exited(self, member: Member, returncode: int) -> None:
        """It is gone; start it again unless the house is going down or it can't be helped."""
        if member.failure is not None and not self._crashes.has_served(member):
            self._end(_EXIT_SETTINGS, member.failure)
        self._forget(member)
        self._lost(member, member.failure or _reason(returncode))

    def metrics_arrived(self, deltas: Json) -> None:
        """It counted something."""
        self.metrics.absorb(deltas)

    def answer(self, member: Member, what: str) -> Json:
        """It asks something."""
        if what == Request.STATE:
            return self._broadcast.tell(member)
        assert what == Request.METRICS
        return {"text": self.metrics.text()}

    def _forget(self, member: Member) -> None:
        """Clear what a dead process had written on the shared page, and what it said of itself."""
        self.metrics.forget(member.plan.title)
        if member.plan.role == "frontend":
            self._house.page.clear_frontend(member.plan.index)
        elif member.plan.role == "batch manager":
            self._house.page.clear_manager(member.plan.index)

    def _lost(self, member: Member, reason: str) -> None:
        """A process has died or could not be started."""
        if self._exit.done():
            return
        title, role = member.plan.title, member.plan.role
        logger.error("%s has ended: %s", title, reason)
        delay = self._crashes.failed(member, time.monotonic())
        if self._crashes.is_beyond_help(member) and not self._has_stand_in(member):
            self._end(_EXIT_FAILED, f"{title} can't be started: {reason}")
            return
        self.metrics.count("embedline_process_restarts_total", role)
        self._broadcast.send()
        self._spawn(self._start_again(member, delay))

    def _has_stand_in(self, member: Member) -> bool:
        """Whether another process does the same work, or may yet."""
        same = [m for m in self._members if (m.plan.role, m.plan.model) == (member.plan.role, member.plan.model)]
        return any(m is not member and not self._crashes.is_beyond_help(m) for m in same)

    async def _start_again(self, member: Member, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        if self._exit.done():
            return
        try:
            await member.start()
        except SpawnError as error:
            self._lost(member, str(error))

    def _end(self, code: int, message: str = "") -> None:
        if not self._exit.done():
            self._exit.set_result(_Ending(code, message))

    def _signalled(self) -> None:
        """The first signal stops in order, the second at once."""
        if self._exit.done():
            for member in self._members:
                member.kill()
            return
        logger.info("stopping")
        self._end(0)
        self._broadcast.stopping()

    def _hung_up(self) -> None:
        """The terminal closed; it may say so twice, which is not impatience."""
        if not self._exit.done():
            self._signalled()

    async def _stop(self, seconds: float) -> None:
        """Frontends first, with time to finish what they hold; the others hold nothing then. Engines last."""
        self._house.stop_listening()
        for role in reversed(ROLES):
            patience = seconds + _LAST_WORDS_SECONDS if role == "frontend" else _LAST_WORDS_SECONDS
            members = [member for member in self._members if member.plan.role == role]
            ended = await asyncio.gather(*(member.stop(patience) for member in members))
            if not all(ended):
                logger.error("%d %s process(es) had to be killed after %g s", ended.count(False), role, patience)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)


def _seen(member: Member) -> Seen:
    return Seen(
        title=member.plan.title,
        pid=member.pid,
        is_ready=member.is_ready,
        last_beat=member.last_beat,
        busy_since=member.busy["since"] if member.busy else None,
        is_engine=member.plan.role == "engine",
    )


def _reason(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    return signal.Signals(-returncode).name
