"""What the house looks like, told to the frontends: which models there are and whether they can compute.

The server counts as ready only once its frontends know it: whoever asks after that is not turned away.
"""

import logging
import time
from collections.abc import Iterable, Sequence

from server.house import ModelPlan
from server.member import Member
from wire.control import Json
from wire.page import Page

ROLES = ("engine", "tokenizer", "batch manager", "frontend")  # in the order of starting

logger = logging.getLogger("embedline.supervisor")


class Broadcast:
    """Numbers each STATE, and knows which frontends have taken in which."""

    def __init__(self, members: Sequence[Member], model: ModelPlan, *, page: Page, limits: Json) -> None:
        self._members = members
        self._page = page
        self._model = model
        self._limits = limits
        self._infos: dict[Member, Json] = {}  # what each engine said when it became ready, and when
        self._number = 0  # of the newest STATE
        self._up_since = 0  # the number of the STATE that first said ready; 0 while it does not
        self._is_stopping = False
        self._said: str | None = "starting"  # what the log knows of our readiness

    def engine_loaded(self, engine: Member, info: Json) -> None:
        """Take note of what an engine says of its model."""
        self._infos[engine] = {**info, "loaded_at": int(time.time())}

    def stopping(self) -> None:
        """From now on nothing is ready."""
        self._is_stopping = True
        self.send()

    def state(self) -> Json:
        """The house as it is now."""
        reason = self._why_not_up()
        return {"ready": reason is None, "reason": reason, "models": self._models(), "limits": self._limits}

    async def start(self, member: Member) -> None:
        """Start a process that knows the house from the beginning."""
        await member.start(self.state(), self._number)

    def send(self) -> None:
        """Tell the frontends what has changed."""
        self._number += 1
        if self._why_not_up() is not None:
            self._up_since = 0
        elif not self._up_since:
            self._up_since = self._number
        state = self.state()
        for member in self._of("frontend"):
            member.send_state(self._number, state)
        self.log()

    def why_not_ready(self) -> str | None:
        """None when a request sent now would be computed."""
        reason = self._why_not_told()
        if reason is None and (self._page.engines_ready.sum(axis=0) < 1).any():
            return "no engine is ready"  # the batch manager knows before a dead one is reaped
        return reason

    def log(self) -> None:
        """One line whenever readiness changes."""
        reason = self._why_not_told()
        if reason != self._said:
            self._said = reason
            logger.info("not ready: %s", reason) if reason else logger.info("ready")

    def _why_not_told(self) -> str | None:
        reason = self._why_not_up()
        if reason is None and any(m.is_ready and m.seen < self._up_since for m in self._of("frontend")):
            return "a frontend is yet to be told"
        return reason

    def _why_not_up(self) -> str | None:
        if self._is_stopping:
            return "the server is stopping"
        for role in ROLES:
            if not any(member.is_ready for member in self._of(role)):
                return f"no {role} is ready"
        return None

    def _models(self) -> list[Json]:
        """Nothing before the first engine was ready; what it said then stays true while it restarts."""
        if not self._infos:
            return []
        return [
            {
                **next(iter(self._infos.values())),
                "source": self._model.source,
                "revision": self._model.revision,
                "prompts": self._model.folder.prompts,
                "default_prompt": self._model.default_prompt,
                "truncation": self._limits["truncation"],
                "devices": [info["info"]["device"] for info in self._infos.values()],
            }
        ]

    def _of(self, role: str) -> Iterable[Member]:
        return (member for member in self._members if member.plan.role == role)
