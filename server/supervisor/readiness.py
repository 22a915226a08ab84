"""What the house looks like, told to the frontends: which models there are and whether they can compute.

The server counts as ready only once its frontends know it: whoever asks after that is not turned away.
"""

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence

from engine.model.detection.generative import template_name
from engine.model.model_folder import ModelFolder
from server.commands.inspect.task import head_in_words
from server.supervisor.child import Member
from server.supervisor.model_plan import ModelPlan
from wire.control import Json
from wire.page import Page

ROLES = ("engine", "tokenizer", "batch manager", "frontend")  # in the order of starting

_UNTOLD = "a frontend is yet to be told"  # for a moment, so no line of the log

logger = logging.getLogger("embedline.supervisor")


class Broadcast:
    """Numbers each STATE, and knows which frontends have taken in which."""

    def __init__(self, members: Sequence[Member], models: Sequence[ModelPlan], *, page: Page, limits: Json) -> None:
        self._members = members
        self._page = page
        self._models = models
        self._limits = limits
        self._infos: dict[Member, Json] = {}  # what each engine said when it became ready, and when
        self._number = 1  # of the newest STATE; a member that has seen none is at 0
        self._up_since = 0  # the number of the STATE that first said ready; 0 while it does not
        self._is_stopping = False
        self._said: str | None = "starting"  # what the log knows of our readiness

    def engine_loaded(self, engine: Member, info: Json) -> None:
        """Take note of what an engine says of its model."""
        model = info["info"]
        logger.info("%s is computed by %s on %s (%s)", model["name"], model["engine"], model["device"], model["reason"])
        if model["is_padded"]:
            logger.info("%s is computed padded (%s)", model["name"], "; ".join(model["notes"][:1]))
        self._infos[engine] = {**info, "loaded_at": int(time.time())}

    def stopping(self) -> None:
        """From now on nothing is ready."""
        self._is_stopping = True
        self.send()

    def state(self) -> Json:
        """The house as it is now."""
        reason = self._why_not_up()
        return {
            "ready": reason is None,
            "reason": reason,
            "names": [model.name for model in self._models],
            "models": self._loaded(),
            "limits": self._limits,
        }

    def tell(self, member: Member) -> Json:
        """The house as it is now, for a frontend that asks before it accepts; it will not be ready without this one."""
        member.seen = self._number
        return self.state()

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
        if reason != self._said and reason != _UNTOLD:
            self._said = reason
            logger.info("not ready: %s", reason) if reason else logger.info("ready")

    def _why_not_told(self) -> str | None:
        reason = self._why_not_up()
        if reason is None and any(m.seen < self._up_since for m in self._of("frontend") if m.is_ready or m.seen):
            return _UNTOLD
        return reason

    def _why_not_up(self) -> str | None:
        if self._is_stopping:
            return "the server is stopping"
        for role in ROLES:
            if not any(member.is_ready for member in self._of(role)):
                return f"no {role} is ready"
        for index, model in enumerate(self._models):
            if not any(engine.is_ready for engine in self._engines(index)):
                return f"no engine for {model.name} is ready"
        return None

    def _loaded(self) -> list[Json]:
        """Models whose first engine has been ready; what it said then stays true while it restarts."""
        entries = []
        for index, model in enumerate(self._models):
            infos = [self._infos[engine] for engine in self._engines(index) if engine in self._infos]
            if infos:
                info = infos[0]["info"]
                entries.append(
                    {
                        "index": index,
                        **infos[0],
                        # an engine may take longer texts than are asked for
                        "info": {**info, "max_seqlen": min(info["max_seqlen"], model.folder.max_seqlen)},
                        "model_id": model.settings.model_id,
                        "source": model.source,
                        "revision": model.revision,
                        "prompts": model.folder.prompts,
                        "default_prompt": model.default_prompt,
                        **_task(model.folder),
                        "truncation": model.truncation,
                        "devices": [info["info"]["device"] for info in infos],
                    }
                )
        return entries

    def _of(self, role: str) -> Iterable[Member]:
        return (member for member in self._members if member.plan.role == role)

    def _engines(self, model: int) -> Iterable[Member]:
        return (member for member in self._of("engine") if member.plan.model == model)


def _task(folder: ModelFolder) -> Json:
    """What requests for other things than embeddings need to know, and what /info says beside it."""
    return {
        "task": folder.task,
        "task_source": folder.task_source,
        "heads": [head_in_words(head) for head in folder.heads],
        "template": template_name(folder.template),
        "labels": folder.labels,
        "activation": folder.activation,
        "instruction": folder.template.instruction if folder.template else None,
        "late": dataclasses.asdict(folder.late) if folder.late else None,
        "query_table": folder.query_table.folder if folder.query_table else None,
    }
