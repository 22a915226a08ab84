"""Scores of texts or of pairs, by models with labels. Knows no dialect.

Engines give raw scores; what makes probabilities of them is here.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from engine.types import OutputKind
from server.requests.errors import InvalidRequest
from server.requests.mixed_pairs import tokenize_mixed
from server.requests.models import ServedModel
from server.requests.pipeline import Embedded, Pipeline, Work
from server.requests.trace import Trace

_NUMBERS_A_SLICE = 1 << 16  # so many are activated before the event loop gets its turn: about 1 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest(Work):
    """Texts, pairs or lists of ids whose scores are wanted. pair_texts is empty where a text among pairs is alone."""

    outputs: OutputKind = OutputKind.LOGITS
    raw_scores: bool = False  # without the model's activation


async def classify(pipeline: Pipeline, request: ClassifyRequest, trace: Trace) -> Embedded:
    """Scores float32 [items, labels]. Raises RequestError; cancelling it drops the work everywhere."""
    has_pairs, has_texts_alone = any(request.pair_texts), not all(request.pair_texts) or not request.pair_texts
    if has_texts_alone and request.model.instruction is not None and request.texts is not None:
        raise InvalidRequest(
            f"{request.field} must be pairs: this model scores a query with a document", param=request.field
        )
    tokenize = partial(tokenize_mixed, pipeline, request) if has_pairs and has_texts_alone else None
    computed = await pipeline.compute(request, trace, tokenize=tokenize)
    scores = computed.results[OutputKind.LOGITS].values
    if not request.raw_scores:
        activation = request.model.activation
        if activation is Activation.SOFTMAX and scores.shape[1] == 1:
            activation = Activation.SIGMOID  # a softmax of one score is always 1
        scores = await activated(scores, activation)
    return Embedded(scores, computed.num_tokens, computed.tokens.truncated)


def labels_of(model: ServedModel, num_scores: int) -> Sequence[str]:
    """What the scores are called; transformers' names where the model has none of its own."""
    return model.labels or [f"LABEL_{number}" for number in range(num_scores)]


async def activated(raw: NDArray[np.float32], activation: Activation) -> NDArray[np.float32]:
    """Scores float32 [N, labels] of raw ones. Many are made slice by slice; others have their turn meanwhile."""
    if activation is Activation.IDENTITY:
        return raw
    scores = np.empty_like(raw)
    rows = max(1, _NUMBERS_A_SLICE // max(1, raw.shape[1]))
    for start in range(0, len(raw), rows):
        if start:
            await asyncio.sleep(0)
        part = slice(start, start + rows)
        scores[part] = _sigmoid(raw[part]) if activation is Activation.SIGMOID else _softmax(raw[part])
    return scores


def _softmax(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(raw - raw.max(axis=1, keepdims=True))  # the largest is 1, so none overflows
    shares: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _sigmoid(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(-np.abs(raw))  # at most 1, so none overflows
    scores: NDArray[np.float32] = np.where(raw >= 0, np.float32(1), powers) / (1 + powers)
    return scores
