"""Which of a model's adapters computes a request's texts: the one of the prompt's name. jina-embeddings-v3 has them.

The number of an adapter is its place among ServedModel.adapters, from 1; 0 = none.
"""

from dataclasses import replace

import numpy as np

from engine.types import ADAPTER_SHIFT
from server.requests.errors import InvalidRequest
from server.requests.inputs.prompts import Purpose
from server.requests.models import ServedModel
from server.requests.work import Work
from tokenizer_pool.token_ids import TokenizedTexts


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


def with_adapters(tokens: TokenizedTexts, work: Work) -> TokenizedTexts:
    """Each token's type has the number of its adapter: see engine.types.ADAPTER_SHIFT."""
    if not (work.adapter or work.query_adapter):
        return tokens
    types = np.zeros_like(tokens.token_ids) if tokens.token_type_ids is None else tokens.token_type_ids.copy()
    end = int(tokens.offsets[work.num_queries])
    types[:end] |= work.query_adapter << ADAPTER_SHIFT
    types[end:] |= work.adapter << ADAPTER_SHIFT
    return replace(tokens, token_type_ids=types)
