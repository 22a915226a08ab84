"""The models this server has, as a frontend knows them. Filled from the supervisor's STATE."""

from dataclasses import dataclass, field
from typing import Any

from server.errors import ModelNotFound
from tokenizer_pool.messages import Truncation


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What a request needs to know of its model."""

    index: int  # the model's number on the wire
    name: str
    dimensions: int
    max_seqlen: int  # tokens, special ones included
    vocab_size: int
    normalize: bool
    truncation: Truncation  # what --auto-truncate says
    default_prompt: str = ""  # put before each text
    facts: dict[str, Any] = field(default_factory=dict)  # the rest of what the engine says, for /info


class ModelTable:
    """Chooses by the request's `model`. With one model any name will do, and is answered with the served one."""

    def __init__(self, models: list[ServedModel]) -> None:
        self.models = models
        self._by_name = {model.name: model for model in models}

    def choose(self, name: str | None) -> ServedModel:
        """Raises ModelNotFound."""
        if len(self.models) == 1:
            return self.models[0]
        model = self._by_name.get(name or "")
        if model is None:
            raise ModelNotFound("no model of that name is served here; GET /v1/models lists them", param="model")
        return model


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
            truncation=Truncation(entry["truncation"]),
            default_prompt=entry["default_prompt"],
            facts=entry,
        )
        for entry in entries
    ]
