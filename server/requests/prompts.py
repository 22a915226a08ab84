"""The prompt of a text by what it is for: one of the model's own prompts, and the adapter that computes it.

Models name their prompts as they like. The names here are those of the well-known ones, in the order in which they are
looked for. Some models, as jina-embeddings-v3, have an adapter for each of these purposes too, under the prompt's name.
The number of an adapter is its place among ServedModel.adapters, from 1; 0 = none.
"""

import enum

from server.requests.errors import InvalidRequest
from server.requests.models import ServedModel


class Purpose(enum.Enum):
    """A purpose that a text is embedded for, with the names of prompts for it."""

    QUERY = ("query", "search_query", "retrieval.query", "Retrieval-query", "s2p_query", "web_search_query")
    DOCUMENT = ("document", "passage", "search_document", "retrieval.passage", "Retrieval-document", "corpus")
    CLASSIFICATION = ("classification", "Classification")
    CLUSTERING = ("clustering", "Clustering", "separation")
    SIMILARITY = ("text-matching", "STS", "s2s_query", "sts_query")


_OTHER_SIDE = {Purpose.QUERY: Purpose.DOCUMENT, Purpose.DOCUMENT: Purpose.QUERY}


def prompt_for(model: ServedModel, purpose: Purpose) -> str | None:
    """The model's prompt; None if it has prompts, but none for this purpose.

    A model without prompts treats all texts alike, so its default prompt stays. A model that has a prompt for one side
    of a search only, as most have one for queries, gets nothing before texts of the other side.
    """
    prompt = _named(model, purpose)
    if prompt is not None or not model.prompts:
        return model.default_prompt if prompt is None else prompt
    other = _OTHER_SIDE.get(purpose)
    if other is None:
        return None
    return model.default_prompt if _named(model, other) is None else ""


def _named(model: ServedModel, purpose: Purpose) -> str | None:
    return next((model.prompts[name] for name in purpose.value if name in model.prompts), None)


def adapter_named(model: ServedModel, name: str | None) -> int:
    """The adapter of this name; the default one for None."""
    name = model.default_adapter if name is None else name
    return model.adapters.index(name) + 1 if name in model.adapters else 0


def adapter_for(model: ServedModel, purpose: Purpose, *, field: str) -> int:
    """The adapter for a purpose, as prompt_for chooses the prompt; 0 if the model has no adapters at all.

    Raises InvalidRequest, naming the field, if it has none for this purpose.
    """
    name = next((name for name in purpose.value if name in model.adapters), None)
    if name is None and model.adapters:
        raise no_adapter(model, purpose.value[0], field=field)
    return adapter_named(model, name) if name else 0


def no_adapter(model: ServedModel, word: str, *, field: str) -> InvalidRequest:
    """The error for a word that says what texts are for."""
    known = ", ".join(model.adapters)
    return InvalidRequest(f"{field}: this model has no adapter for {word!r}, only for {known}", param=field)
