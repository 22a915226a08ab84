"""Starts all processes, watches them, starts again what dies, stops them in reverse order.

The first process of the house and the only one that acts on signals. It computes nothing and holds
no request, so that it answers when anything else is stuck.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from server.crash_loop import CrashLoop
from server.house import House, ModelPlan
from server.member import Member
from server.metrics import Registry
from server.watchdog import Watchdog
from wire.control import Json, Request

_RESTART_ORDER = ("engine", "tokenizer", "batch manager", "frontend")
_EXIT_FAILED = 1
_EXIT_SETTINGS = 2

logger = logging.getLogger("embedline.supervisor")


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the server ends."""

    code: int  # of the process
    message: str = ""  # the last line of the log


class Supervisor:
    """The running house. `run` returns the exit code of the whole server."""

    def __init__(self, house: House, model: ModelPlan, *, limits: Json, log_level: str, watchdog: Watchdog) -> None:
        self._house = house
        self._model = model
        self._limits = limits
        self._watchdog = watchdog
        self._members = [Member(plan, self, log_level) for plan in house.plans()]
        self._crashes = CrashLoop()
        self._infos: dict[Member, Json] = {}  # what each engine said when it became ready, with the time
        self._said: str | None = "starting"  # what the log knows of our readiness
        self._exit: asyncio.Future[_Ending] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self.metrics = Registry(house.page, [model.name], lambda: self.why_not_ready() is None)

    async def run(self, shutdown_seconds: float) -> int:
        """Serve until a signal or until it makes no sense to go on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        for member in self._members:
            await member.start()
        watching = loop.create_task(self._watchdog.run(self._members))
        ending = await self._exit
        watching.cancel()
        await self._stop(shutdown_seconds)
        if ending.message:
            logger.critical("%s", ending.message)
        return ending.code

    def why_not_ready(self) -> str | None:
        """None when a request sent now would be computed."""
        if self._exit.done():
            return "the server is stopping"
        for role in _RESTART_ORDER:
            if not any(member.is_ready for member in self._of(role)):
                return f"no {role} is ready"
        return None

    # MemberEvents

    def member_ready(self, member: Member, info: Json) -> None:
        """It serves."""
        logger.info("%s is ready", member.plan.title)
        self._crashes.succeeded(member)
        if member.plan.role == "engine":
            self._infos[member] = {**info, "loaded_at": int(time.time())}
        self._send_state()

    def member_exited(self, member: Member, returncode: int) -> None:
        """It is gone; start it again unless the house is going down or it can't be helped."""
        if self._exit.done():
            return
        if member.failure is not None and not self._crashes.has_served(member):
            self._exit.set_result(_Ending(_EXIT_SETTINGS, member.failure))
            return
        logger.error("%s has ended: %s", member.plan.title, member.failure or _reason(returncode))
        self._forget(member)
        delay = self._crashes.failed(member)
        if delay is None:
            message = f"{member.plan.title} can't be started: {member.failure or _reason(returncode)}"
            self._exit.set_result(_Ending(_EXIT_FAILED, message))
            return
        self.metrics.count("embedline_process_restarts_total", member.plan.role)
        self._send_state()
        self._spawn(self._start_again(member, delay))

    def metrics_arrived(self, deltas: Json) -> None:
        """It counted something."""
        self.metrics.absorb(deltas)

    def answer(self, what: str) -> Json:
        """It asks something."""
        assert what == Request.METRICS
        return {"text": self.metrics.text()}

    def _of(self, role: str) -> Iterable[Member]:
        return (member for member in self._members if member.plan.role == role)

    def _forget(self, member: Member) -> None:
        """Clear what a dead process had written on the shared page."""
        if member.plan.role == "frontend":
            self._house.page.clear_frontend(member.plan.index)
        elif member.plan.role == "batch manager":
            self._house.page.clear_manager(member.plan.index)

    async def _start_again(self, member: Member, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        if not self._exit.done():
            await member.start()

    def _send_state(self) -> None:
        """Tell the frontends what the house looks like now."""
        reason = self.why_not_ready()
        if reason != self._said:
            logger.info("not ready: %s", reason) if reason else logger.info("ready")
            self._said = reason
        state = {"ready": reason is None, "reason": reason, "models": self._models(), "limits": self._limits}
        for member in self._of("frontend"):
            member.send_state(state)

    def _models(self) -> list[Json]:
        """What the frontends need to know of each model; nothing before its first engine was ready."""
        for info in self._infos.values():
            model = self._model
            return [
                {
                    **info,
                    "source": model.source,
                    "revision": model.revision,
                    "prompts": model.folder.prompts,
                    "default_prompt": model.default_prompt,
                    "truncation": self._limits["truncation"],
                    "devices": [engine["info"]["device"] for engine in self._infos.values()],
                }
            ]
        return []

    def _signalled(self) -> None:
        """The first signal stops in order, the second at once."""
        if self._exit.done():
            for member in self._members:
                member.kill()
            return
        logger.info("stopping")
        self._exit.set_result(_Ending(0))
        self._send_state()

    async def _stop(self, seconds: float) -> None:
        """Frontends first, so that what they still hold is computed; engines last."""
        for role in reversed(_RESTART_ORDER):
            ended = await asyncio.gather(*(member.stop(seconds) for member in self._of(role)))
            if not all(ended):
                logger.error("a %s did not end within %g s and was killed", role, seconds)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)


def _reason(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    return signal.Signals(-returncode).name
