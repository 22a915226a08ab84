"""The served models and whether they can compute, as a frontend learns it from the supervisor's STATE."""

import base64
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation, LateInteraction, Task
from engine.types import OutputKind
from server.requests.admission import Load, expected_wait, load
from server.requests.errors import InvalidRequest, ModelNotFound, NotReady
from server.requests.prompts import NEWEST, PURPOSES
from tokenizer_pool.messages import Truncation
from wire.control import Json
from wire.page import Page
from wire.vocabulary import RequestClass

LORA_PATH = "lora_path"  # SGLang's name of the field that chooses a LoRA adapter
_LISTED = "GET /v1/models lists them"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The facts that a request needs of its model, or of a LoRA adapter, which is served as if it were a model."""

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
    adapters: tuple[str, ...] = ()  # for texts of several tasks, by the names of these
    default_adapter: str | None = None  # one of them, for texts without a task; None = none
    truncate_dim: int | None = None  # of pooled rows where a request does not say, fewer than `dimensions`; None = all
    chunk_separator_id: int | None = None  # between late chunks; None = nothing is
    rounds: bool = False  # whether it makes whole numbers of a row: see engine.model.modules.ROUNDING
    shares_prefixes: bool = False  # whether it computes once what texts of a request begin with alike
    max_active_dims: int | None = None  # the most entries of a sparse row; None = all
    ranges: NDArray[np.float32] | None = field(default=None, compare=False)  # for int8, see dialects/row_answers.py
    decodes_ids: bool = False  # given token ids are another tokenizer's, and become texts before all else
    lora: int = 0  # which of its base's LoRA adapters it is, from 1: it computes all texts; 0 = none, this is a base
    parent: str | None = None  # the served name of a LoRA adapter's base; None = this is a base
    facts: dict[str, Any] = field(default_factory=dict)  # the rest of what the engine says, for /info

    @property
    def base_name(self) -> str:
        """The name that metrics have: those of adapters are their base's."""
        return self.parent or self.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which requests may call it."""
        return (self.name,) if self.parent is None else (self.name, f"{self.parent}:{self.name}")

    @property
    def default_dimensions(self) -> int:
        """The numbers in a row where a request does not say how many."""
        return self.truncate_dim or self.dimensions

    @property
    def prompts(self) -> dict[str, str]:
        """The model's own prompts by name."""
        prompts: dict[str, str] = self.facts.get("prompts", {})
        return prompts


class ModelTable:
    """Chooses by the request's `model`. If only one model is served, it takes any name and answers with its own.

    An exact name comes first, also one of a LoRA adapter, then `base:adapter`, then a word for a prompt or a task
    behind either. A model with LoRA adapters takes no other name: a request that misspells one of these would get rows
    of the base.

    models     the loaded models, and behind each its LoRA adapters
    names      of all served models, also of those that are still loading
    parents    the names of all LoRA adapters, and of the model that each is of
    is_strict  whether a single model, too, takes only its own name
    """

    def __init__(
        self,
        models: list[ServedModel],
        *,
        names: Sequence[str] = (),
        parents: Mapping[str, str] = MappingProxyType({}),
        is_strict: bool = False,
    ) -> None:
        self.models = models
        self._by_name = {name: model for model in models for name in model.names}
        parents = {**parents, **{model.name: model.parent for model in models if model.parent}}
        bases = dict.fromkeys([*names, *(model.base_name for model in models)])
        own = {f"{parent}:{name}": name for name, parent in parents.items()}
        self._own_names = {**own, **{name: name for name in (*bases, *parents)}}
        self._only = next(iter(bases)) if len(bases) == 1 else None
        self._with_loras = frozenset((*parents, *parents.values()))
        self._is_strict = is_strict
        self._name_in_path: str | None = None

    def named(self, name: str) -> Self:
        """The table for a request whose path names the model: what its body says does not count."""
        table = copy.copy(self)
        table._name_in_path = name
        return table

    def asked_name(self, name: str | None) -> str | None:
        """The name that the request gives its model; `name` is what its body says."""
        return name if self._name_in_path is None else self._name_in_path

    def own_name(self, name: str | None, *, with_prompt: bool = True) -> str | None:
        """The name of the served model or adapter that a request means, which may still be loading; None = no model."""
        if name is None:
            return self._only
        if name in self._own_names:
            return self._own_names[name]
        if self._only is not None and not self._is_strict and not (name and self._with_loras):
            return self._only
        stem, _, word = name.rpartition(":")
        own = self._own_names.get(stem) if with_prompt or word == NEWEST else None
        return None if own in self._with_loras and not self._may_follow(own, word) else own

    def _may_follow(self, own: str, word: str) -> bool:
        """Whether the word may stand behind the name of a model with LoRA adapters, or of one of these: as long as the
        model is loading, any may."""
        model = self._by_name.get(own)
        return model is None or word in PURPOSES or word in model.prompts or word == NEWEST

    def choose(self, name: str | None, *, with_prompt: bool = False) -> ServedModel:
        """Choose the model that is asked for. `with_prompt` allows a word for a prompt behind the name, as in
        `name:query`; Ollama's `name:latest` is always allowed.

        Raises ModelNotFound, and NotReady for a model that is loading.
        """
        name = self.asked_name(name)
        model = self._by_name.get(name or "")
        if model is not None:
            return model
        own = self.own_name(name, with_prompt=with_prompt)
        if own is not None and own in self._by_name:
            return self._by_name[own]
        if own is not None:
            raise NotReady("the model is still loading", param="model")
        problem = "no model has that name" if name is not None else "several models are served; name one"
        raise ModelNotFound(f"{problem}; {_LISTED}", param="model")

    def choose_lora(self, lora: str, name: str | None, *, with_prompt: bool = False) -> ServedModel:
        """Choose the LoRA adapter of this name; `name` is what the request says of its model.

        Raises what `choose` raises, and InvalidRequest for an adapter of another model, or where `name` is another
        adapter's.
        """
        own = self._own_names.get(lora)
        if own is None or own not in self._with_loras:
            raise ModelNotFound(f"no adapter has that name; {_LISTED}", param=LORA_PATH)
        if own not in self._by_name:
            raise NotReady("the model is still loading", param=LORA_PATH)
        found = self._by_name[own]
        if found.parent is None:
            raise InvalidRequest(f"{LORA_PATH} must be an adapter, and names a model; {_LISTED}", param=LORA_PATH)
        if self.asked_name(name):
            model = self.choose(name, with_prompt=with_prompt)
            if model.name not in (found.name, found.parent):
                raise InvalidRequest(
                    f"{LORA_PATH} differs from model, which names another adapter or another's base", param=LORA_PATH
                )
        return found


def _late(fields: dict[str, Any] | None) -> LateInteraction | None:
    if fields is None:
        return None
    return LateInteraction(**{**fields, "skipped_ids": tuple(fields["skipped_ids"])})


def _fewer(wanted: int | None, dimensions: int) -> int | None:
    return None if wanted is None or wanted >= dimensions else wanted


def _ranges(fields: dict[str, str] | None) -> NDArray[np.float32] | None:
    if fields is None:
        return None
    return np.frombuffer(base64.b64decode(fields["numbers"]), "<f4").reshape(2, -1)


def served_models(entries: list[dict[str, Any]], *, decodes_ids: bool = False) -> list[ServedModel]:
    """The models of a STATE, and behind each its LoRA adapters."""
    bases = [_base(entry, decodes_ids=decodes_ids) for entry in entries]
    return [model for base in bases for model in (base, *_adapters_of(base))]


def _base(entry: dict[str, Any], *, decodes_ids: bool) -> ServedModel:
    return ServedModel(
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
        adapters=tuple(entry.get("adapters", ())),
        default_adapter=entry.get("default_adapter"),
        truncate_dim=_fewer(entry.get("truncate_dim"), entry["info"]["dimensions"]),
        chunk_separator_id=entry.get("chunk_separator_id"),
        rounds=bool(entry.get("rounds")),
        shares_prefixes=entry["info"].get("shares_prefixes", False),
        max_active_dims=entry.get("max_active_dims"),
        ranges=_ranges(entry.get("int8_ranges")),
        decodes_ids=decodes_ids,
        facts=entry,
    )


def _adapters_of(base: ServedModel) -> Iterator[ServedModel]:
    """The LoRA adapters of a model: they have its queue and its metrics, so its index stays."""
    for number, own in enumerate(base.facts.get("loras", ()), 1):
        max_seqlen = min(own["max_seqlen"], base.max_seqlen)
        info = {**base.facts["info"], "name": own["name"], "max_seqlen": max_seqlen}
        yield replace(
            base,
            name=own["name"],
            parent=base.name,
            lora=number,
            max_seqlen=max_seqlen,
            default_prompt=own["default_prompt"],
            facts={**base.facts, **own, "info": info, "loras": ()},
        )


@dataclass(frozen=True, slots=True)
class QueueState:
    """The work that one model has, in all frontends and batch managers."""

    waiting_tokens: int
    computing_tokens: int
    wait_seconds: float  # of an interactive request that came now
    max_wait_seconds: float  # over which it would be refused
    max_batch_tokens: int


class ModelsState:
    """The models that there are and whether they can compute. It is set by the supervisor's STATE; read by every
    route."""

    def __init__(self, page: Page, *, strict_model_name: bool = False, decodes_ids: bool = False) -> None:
        self._page = page
        self._strict_model_name = strict_model_name
        self._decodes_ids = decodes_ids
        self._state: Json = {}
        self._models: ModelTable | None = None
        self.draining = False

    def update(self, state: Json) -> None:
        """Take in a STATE."""
        self._state = state
        if state["models"]:
            self._models = ModelTable(
                served_models(state["models"], decodes_ids=self._decodes_ids),
                names=self.names,
                parents=self.parents,
                is_strict=self._strict_model_name,
            )

    @property
    def newest(self) -> Json:
        """The newest STATE."""
        return self._state

    @property
    def models(self) -> ModelTable | None:
        """The served models; None while the first model is loading."""
        return self._models

    @property
    def names(self) -> Sequence[str]:
        """The names of all served models in their order, also of those that are still loading."""
        names: Sequence[str] = self._state.get("names", ())
        return names

    @property
    def parents(self) -> Mapping[str, str]:
        """The names of LoRA adapters, and which one of `names` each is an adapter of."""
        parents: Mapping[str, str] = self._state.get("parents", {})
        return parents

    def has(self, name: str) -> bool:
        """Whether it is one of `names`, or of `parents`."""
        return name in self.names or name in self.parents

    def own_name(self, name: str) -> str | None:
        """One of `names` or `parents` if a request may call it so; None if that would be no model."""
        models = self._models or ModelTable(
            [], names=self.names, parents=self.parents, is_strict=self._strict_model_name
        )
        return models.own_name(name)

    def _index(self, name: str) -> int:
        """The column of the page."""
        return self.names.index(self.parents.get(name, name))

    def why_model_not_ready(self, name: str) -> str | None:
        """The reason why a model is not ready; None if a request for this one of `names` or `parents`, sent now, would
        be computed."""
        if self.draining:
            return "the server is stopping"
        if not self._page.engines_ready[:, self._index(name)].any():
            return "no engine for the model is ready"
        return None

    def queue_of(self, name: str) -> QueueState:
        """The work of the model that is this one of `names` or `parents`: adapters share their base's."""
        index, limits = self._index(name), self._state.get("limits", {})
        queued, computing = (
            int(cells[:, index].sum()) for cells in (self._page.queued_tokens, self._page.computing_tokens)
        )
        return QueueState(
            waiting_tokens=max(0, queued - computing),
            computing_tokens=computing,
            wait_seconds=expected_wait(self._page, index, RequestClass.INTERACTIVE),
            max_wait_seconds=limits.get("interactive_max_wait", 0.0),
            max_batch_tokens=limits.get("max_batch_tokens", 0),
        )

    def load(self, name: str | None) -> Load:
        """The load of all models, or of this one of `names` or `parents`."""
        if name is None:
            return load(self._page, range(len(self.names)), self.why_not_ready())
        return load(self._page, [self._index(name)], self.why_model_not_ready(name))

    def models_or_not_ready(self) -> ModelTable:
        """The models. Raises NotReady while the first model is loading."""
        if self._models is None:
            raise NotReady("the model is still loading")
        return self._models

    def why_not_ready(self) -> str | None:
        """The reason why the server is not ready; None if a request sent now would be computed."""
        if self.draining:
            return "the server is stopping"
        if not self._state.get("ready"):
            return str(self._state.get("reason", "starting"))
        # the page shows a dead engine before the next STATE does
        if (self._page.engines_ready.sum(axis=0) < 1).any():
            return "no engine is ready"
        return None
