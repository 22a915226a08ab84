"""The prompt of a text by what it is for: one of the model's own prompts, and the adapter that computes it.

Models name their prompts as they like. The names here are those of the well-known ones, in the order in which they are
looked for. Some models, as jina-embeddings-v3, have an adapter for each of these purposes too, under the prompt's name;
jina-embeddings-v5 has one for both sides of a search, and no prompts of other names than of these two.
The number of an adapter is its place among the model's, from 1; 0 = none.
"""

import enum
from collections.abc import Mapping
from typing import Protocol

from engine.model.tasks import Task
from server.requests.errors import InvalidRequest

SCORING = (Task.RERANK, Task.CLASSIFY, Task.TOKEN_CLASSIFY)  # to texts for these no request's prompt is put
_SHOWN_CHARS = 200  # of a prompt in a log


class Purpose(enum.Enum):
    """A purpose that a text is embedded for, with the names of prompts for it."""

    QUERY = ("query", "search_query", "retrieval.query", "Retrieval-query", "s2p_query", "web_search_query")
    DOCUMENT = ("document", "passage", "search_document", "retrieval.passage", "Retrieval-document", "corpus")
    CLASSIFICATION = ("classification", "Classification")
    CLUSTERING = ("clustering", "Clustering", "separation")
    SIMILARITY = ("text-matching", "STS", "s2s_query", "sts_query")


# The words by which requests name a purpose, also behind a model's name.
PURPOSES = {
    "query": Purpose.QUERY,
    "search_query": Purpose.QUERY,
    "retrieval.query": Purpose.QUERY,
    "document": Purpose.DOCUMENT,
    "passage": Purpose.DOCUMENT,
    "search_document": Purpose.DOCUMENT,
    "retrieval.passage": Purpose.DOCUMENT,
    "classification": Purpose.CLASSIFICATION,
    "clustering": Purpose.CLUSTERING,
    "separation": Purpose.CLUSTERING,
    "text-matching": Purpose.SIMILARITY,
}
NEWEST = "latest"  # what Ollama's clients have behind a name
_SEARCH = "retrieval"  # an adapter for both sides of a search
_OTHER_SIDE = {Purpose.QUERY: Purpose.DOCUMENT, Purpose.DOCUMENT: Purpose.QUERY}


class WithPrompts(Protocol):
    """A model, served or only planned."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Its own prompts by name."""

    @property
    def default_prompt(self) -> str:
        """What is put before a text of which nothing is said."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """The tasks for which it has adapters."""

    @property
    def default_adapter(self) -> str | None:
        """The one of these for texts without a task."""


def prompt_for(model: WithPrompts, purpose: Purpose) -> str | None:
    """The model's prompt; None if it has prompts, but none for this purpose.

    A model without prompts treats all texts alike, so its default prompt stays. A model that has a prompt for one side
    of a search only, as most have one for queries, gets nothing before texts of the other side. An empty prompt says
    nothing: sentence-transformers fills in empty ones for queries and documents.
    """
    if not has_prompts(model):
        return model.default_prompt
    if prompt := _named(model, purpose):
        return prompt
    other = _OTHER_SIDE.get(purpose)
    if other is not None:
        return "" if _named(model, other) else model.default_prompt
    if _name(model, purpose) is not None:
        return ""
    return model.default_prompt if _adapter_for(model, purpose) else None


def library_differences(model: WithPrompts) -> list[str]:
    """Where encode_query and encode_document of sentence-transformers 6.2 put something else before a text than is put
    there here, a line each. They look for prompts of these two names alone."""
    found = []
    for word, purpose in (("query", Purpose.QUERY), ("document", Purpose.DOCUMENT)):
        ours, theirs = prompt_for(model, purpose) or "", model.prompts.get(word, "")
        if ours != theirs:
            found.append(
                f"sentence-transformers 6.2 has {theirs!r} before a {word} (encode_{word}), and here it is {ours!r}"
            )
    return found


def has_prompts(model: WithPrompts) -> bool:
    """Whether any of its prompts says something: sentence-transformers writes empty ones where there are none."""
    return any(model.prompts.values())


def _named(model: WithPrompts, purpose: Purpose) -> str:
    """The first prompt for this purpose that says something; "" if there is none."""
    name = _name(model, purpose)
    return "" if name is None else model.prompts[name]


def _name(model: WithPrompts, purpose: Purpose) -> str | None:
    there = [name for name in purpose.value if name in model.prompts]
    return next((name for name in there if model.prompts[name]), next(iter(there), None))


def by_input_type(model: WithPrompts) -> dict[str, dict[str, str | None]]:
    """What `input_type` puts before the texts of each side of a search; nothing for a model without prompts, to which
    it changes nothing. A `prompt_name` of None: no prompt of the model's own is for that side."""
    return {side.value[0]: _of_side(model, side) for side in _OTHER_SIDE} if has_prompts(model) else {}


def _of_side(model: WithPrompts, side: Purpose) -> dict[str, str | None]:
    name, prompt = _name(model, side), prompt_for(model, side)
    return {"prompt_name": name if name and model.prompts[name] == prompt else None, "prompt": prompt}


def in_words(model: WithPrompts) -> str:
    """The prompts and how they are asked for, in one line."""
    if not (model.default_prompt or any(_named(model, side) for side in _OTHER_SIDE)):
        said = ", ".join(name for name, prompt in model.prompts.items() if prompt)
        return (
            f"prompts {said}: by its name none of these is for queries or for documents, and nothing is put before "
            'either: choose one by "prompt_name", or by its name as "input_type"'
        )
    query, document = (_shown(prompt_for(model, side)) for side in _OTHER_SIDE)
    return (
        f'prompts {", ".join(model.prompts)}: send queries with "input_type": "query", which puts {query} before each, '
        f'and documents with "document", which puts {document}; a text without input_type gets '
        f"{_shown(model.default_prompt)}"
    )


def _shown(prompt: str | None) -> str:
    if not prompt:
        return "nothing"
    return repr(prompt if len(prompt) <= _SHOWN_CHARS else prompt[: _SHOWN_CHARS - 1] + "…")


def adapter_named(model: WithPrompts, name: str | None) -> int:
    """The adapter of this name; the default one for None."""
    name = model.default_adapter if name is None else name
    return model.adapters.index(name) + 1 if name in model.adapters else 0


def adapter_for(model: WithPrompts, purpose: Purpose, *, field: str) -> int:
    """The adapter for a purpose, as prompt_for chooses the prompt; 0 if the model has no adapters at all.

    Raises InvalidRequest, naming the field, if it has none for this purpose.
    """
    name = _adapter_for(model, purpose)
    if name is None and model.adapters:
        raise no_adapter(model, purpose.value[0], field=field)
    return adapter_named(model, name) if name else 0


def _adapter_for(model: WithPrompts, purpose: Purpose) -> str | None:
    names = (*purpose.value, *([_SEARCH] if purpose in _OTHER_SIDE else ()))
    return next((name for name in names if name in model.adapters), None)


def no_adapter(model: WithPrompts, word: str, *, field: str) -> InvalidRequest:
    """The error for a word that says what texts are for."""
    known = ", ".join(model.adapters)
    return InvalidRequest(f"{field}: this model has no adapter for {word!r}, only for {known}", param=field)
