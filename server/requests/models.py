"""The models this server has, as a frontend knows them. Filled from the supervisor's STATE."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.model.tasks import Activation, LateInteraction, Task
from engine.types import OutputKind
from server.requests.errors import ModelNotFound, NotReady
from tokenizer_pool.messages import Truncation

_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What a request needs to know of its model."""

    index: int  # the model's number on the wire
    name: str
    dimensions: int
    max_seqlen: int  # tokens, special ones included
    vocab_size: int
    normalize: bool
    outputs: OutputKind  # what its engine can give
    truncation: Truncation  # what --auto-truncate says
    token_dimensions: int | None = None  # of a token's row; None = `dimensions`
    default_prompt: str = ""  # put before each text
    task: Task = Task.EMBED
    labels: tuple[str, ...] = ()  # of what LOGITS and TOKEN_LOGITS score, in their order
    activation: Activation = Activation.IDENTITY  # of these scores
    instruction: str | None = None  # of a generative reranker, where a request gives none; None = it takes none
    late: LateInteraction | None = None  # None = the model gives no rows for it
    has_query_table: bool = False  # whether queries are looked up, and have to be marked
    facts: dict[str, Any] = field(default_factory=dict)  # the rest of what the engine says, for /info


class ModelTable:
    """Chooses by the request's `model`. With one model any name will do, and is answered with the served one.

    models     those that are loaded
    names      those that are served, the ones that are loading included
    is_strict  whether one model, too, has to be called by its name where a request has one
    """

    def __init__(self, models: list[ServedModel], *, names: Sequence[str] = (), is_strict: bool = False) -> None:
        self.models = models
        self._by_name = {model.name: model for model in models}
        self._names = frozenset(names) | self._by_name.keys()
        self._is_strict = is_strict

    def choose(self, name: str | None) -> ServedModel:
        """Raises ModelNotFound, and NotReady for a model that is loading."""
        model = self._by_name.get(name or "")
        if model is not None:
            return model
        if len(self._names) == 1 and (name is None or not self._is_strict):
            return self.models[0]
        if name in self._names:
            raise NotReady("the model is still loading", retry_after=_RETRY_SECONDS, param="model")
        problem = (
            "no model of that name is served here" if name is not None else "no model is named, and several are served"
        )
        raise ModelNotFound(f"{problem}; GET /v1/models lists them", param="model")


def _late(fields: dict[str, Any] | None) -> LateInteraction | None:
    if fields is None:
        return None
    return LateInteraction(**{**fields, "skipped_ids": tuple(fields["skipped_ids"])})


def served_models(entries: list[dict[str, Any]]) -> list[ServedModel]:
    """The models of a STATE."""
    return [
        ServedModel(
            index=entry["index"],
            name=entry["info"]["name"],
            dimensions=entry["info"]["dimensions"],
            max_seqlen=entry["info"]["max_seqlen"],
            vocab_size=entry["info"]["vocab_size"],
            normalize=entry["info"]["normalize"],
            outputs=OutputKind(entry["info"]["outputs"]),
            token_dimensions=entry["info"].get("token_dimensions"),
            truncation=Truncation(entry["truncation"]),
            default_prompt=entry["default_prompt"],
            task=Task(entry.get("task", Task.EMBED)),
            labels=tuple(entry.get("labels", ())),
            activation=Activation(entry.get("activation", Activation.IDENTITY)),
            instruction=entry.get("instruction"),
            late=_late(entry.get("late")),
            has_query_table=bool(entry.get("query_table")),
            facts=entry,
        )
        for entry in entries
    ]
