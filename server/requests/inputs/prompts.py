"""Which of a model's own prompts goes before a text, by what the text is for.

Models name their prompts as they like; the names here are those of the well-known ones, in the order in which they are
looked for.
"""

import enum

from server.requests.models import ServedModel


class Purpose(enum.Enum):
    """What a text is embedded for, with the names of prompts for it."""

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
