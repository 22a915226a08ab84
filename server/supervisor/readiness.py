"""Whether the server is ready, and the state that frontends and others get: models, limits, readiness.

The server counts as ready only once its frontends know it: no request after that is refused.
"""

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence

from engine.model.detection.templates import template_name
from engine.model.model_folder import ModelFolder
from engine.model.tasks import head_in_words
from server.supervisor.child import ChildProcess, Need
from server.supervisor.model_plan import ModelPlan
from wire.control import Json
from wire.page import Page

_NOT_INFORMED = "a frontend does not have the newest state yet"  # for a moment, so it is not logged

logger = logging.getLogger("embedline.supervisor")


class Readiness:
    """Numbers each STATE and tracks which frontends have applied which."""

    def __init__(
        self,
        children: Sequence[ChildProcess],
        models: Sequence[ModelPlan],
        *,
        page: Page,
        limits: Json,
        accepts_at_once: bool = True,
    ) -> None:
        """`accepts_at_once`: whether frontends accept connections before the server is ready, too."""
        self._children = children
        self._page = page
        self._models = models
        self._limits = limits
        self._ends: dict[ChildProcess, str] = {}  # how each ended last
        self._infos: dict[ChildProcess, Json] = {}  # what each engine said when it became ready, and when
        self._number = 1  # of the newest STATE; a child that has seen none is at 0
        self._ready_since = 0  # number of the STATE that first said ready; 0 while not ready
        self._is_accepting = accepts_at_once
        self._is_stopping = False
        self._roles = roles_of(children)
        self._were_ready = set[str]()  # roles of which a process was ready at any time
        self.was_ready = False  # at any time
        self._logged: str | None = "starting"  # the reason that was logged last

    def child_ready(self, child: ChildProcess, info: Json) -> None:
        """Keep that one of its role was ready, and what an engine says of its model."""
        self._were_ready.add(child.plan.role)
        if child.plan.role != "engine":
            return
        model = info["info"]
        logger.info(
            "%s runs on the engine %s, device %s (%s)", model["name"], model["engine"], model["device"], model["reason"]
        )
        if model["is_padded"]:
            logger.info("%s runs with padded batches (%s)", model["name"], "; ".join(model["notes"][:1]))
        self._infos[child] = {**info, "loaded_at": int(time.time())}

    def ended(self, child: ChildProcess, how: str) -> None:
        """Keep how it ended, to be told while no process does its work. `how` has no path, as anybody may ask."""
        self._ends[child] = how

    def stopping(self) -> None:
        """Let nothing be ready from now on."""
        self._is_stopping = True
        self.send()

    def accept(self) -> None:
        """Let frontends accept connections from now on, if they did not before."""
        if not self._is_accepting:
            self._is_accepting = True
            self.send()

    def state(self) -> Json:
        """The state that frontends need to know, as it is now."""
        reason = self._why_processes_not_ready()
        return {
            "ready": reason is None,
            "reason": reason,
            "accepting": self._is_accepting,
            "draining": self._is_stopping,
            "names": [model.name for model in self._models],
            "parents": {lora.name: model.name for model in self._models for lora in model.loras},
            "models": self._loaded(),
            "limits": self._limits,
        }

    def state_for(self, child: ChildProcess) -> Json:
        """The state for a frontend that asks before it accepts requests; `why_not_ready` counts it from now on."""
        child.seen = self._number
        return self.state()

    def send(self) -> None:
        """Send the state as it is now."""
        self._number += 1
        if self._why_processes_not_ready() is not None:
            self._ready_since = 0
        elif not self._ready_since:
            self._ready_since = self._number
            self.was_ready = True
        state = self.state()
        for child in reversed(self._children):  # frontends first
            if child.plan.takes_state:
                child.send_state(self._number, state)
        self.log()

    def why_not_ready(self) -> str | None:
        """The reason why the server is not ready; None when a request sent now would be computed."""
        reason = self._why_not_announced()
        if reason is None and (self._page.engines_ready.sum(axis=0) < 1).any():
            return "no engine is ready"  # the batch manager knows before a dead one is reaped
        return reason

    def log(self) -> None:
        """One line whenever readiness changes."""
        reason = self._why_not_announced()
        if reason != self._logged and reason != _NOT_INFORMED:
            self._logged = reason
            logger.info("not ready: %s", reason) if reason else logger.info("ready")

    def _why_not_announced(self) -> str | None:
        reason = self._why_processes_not_ready()
        if reason is None and any(m.seen < self._ready_since for m in self._of("frontend") if m.is_ready or m.seen):
            return _NOT_INFORMED
        return reason

    def _why_processes_not_ready(self) -> str | None:
        if self._is_stopping:
            return "the server is stopping"
        for role in self._roles:
            children = self._of(role)
            need = children[0].plan.to_be_ready
            is_needed = need is Need.ALWAYS or (need is Need.ONCE and role not in self._were_ready)
            if is_needed and (reason := self._why_none(role, children)):
                return reason
        reasons = (
            self._why_none(f"engine for {model.name}", self._engines(index)) for index, model in enumerate(self._models)
        )
        return next(filter(None, reasons), None)

    def _why_none(self, what: str, children: Sequence[ChildProcess]) -> str | None:
        if any(child.is_ready for child in children):
            return None
        ends = [f"{child.plan.title} ended: {self._ends[child]}" for child in children if child in self._ends]
        return f"no {what} is ready" + (f" ({'; '.join(ends)})" if ends else "")

    def _loaded(self) -> list[Json]:
        """The models whose first engine has been ready; what it said then stays true while it restarts."""
        entries = []
        for index, model in enumerate(self._models):
            infos = [self._infos[engine] for engine in self._engines(index) if engine in self._infos]
            if infos:
                info = infos[0]["info"]
                entries.append(
                    {
                        "index": index,
                        **infos[0],
                        "info": {
                            **info,
                            # an engine may take longer texts than are asked for
                            "max_seqlen": min(info["max_seqlen"], model.folder.max_seqlen),
                            # a batch goes to any of them
                            "shares_prefixes": all(one["info"].get("shares_prefixes", False) for one in infos),
                        },
                        "model_id": model.settings.model_id,
                        "source": model.source,
                        "revision": model.revision,
                        "fingerprint": model.identity.fingerprint(dtype=info["dtype"], engine=info["engine"]),
                        "prompts": model.folder.prompts,
                        "prompts_source": model.folder.prompts_source if model.folder.prompts else None,
                        "default_prompt": model.default_prompt,
                        "special_tokens": model.special_tokens,
                        "adapters": model.folder.adapters,
                        "default_adapter": model.default_adapter,
                        "loras": [lora.facts(dtype=info["dtype"], engine=info["engine"]) for lora in model.loras],
                        "truncate_dim": model.folder.truncate_dim,
                        "max_active_dims": model.folder.max_active_dims,
                        "rounds": model.folder.rounds,
                        "chunk_separator_id": model.folder.chunk_separator_id,
                        "int8_ranges": model.int8_ranges.as_json() if model.int8_ranges else None,
                        **_task(model.folder),
                        "truncation": model.truncation,
                        "devices": [info["info"]["device"] for info in infos],
                    }
                )
        return entries

    def _of(self, role: str) -> list[ChildProcess]:
        return [child for child in self._children if child.plan.role == role]

    def _engines(self, model: int) -> list[ChildProcess]:
        return [child for child in self._of("engine") if child.plan.model == model]


def roles_of(children: Iterable[ChildProcess]) -> list[str]:
    """The roles of a server in the order of starting. There are no tokenizers where frontends do their work."""
    return list(dict.fromkeys(child.plan.role for child in children))


def _task(folder: ModelFolder) -> Json:
    """The facts that requests for other things than embeddings need, and what /info says beside it."""
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
