"""Scores of texts or of pairs, by models with labels. Knows no dialect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from engine.types import OutputKind
from server.requests.activation import activated, bounded
from server.requests.errors import InvalidRequest
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace
from server.requests.work import Embedded, Work
from tokenizer_pool.messages import TextRefused
from tokenizer_pool.token_ids import TokenizedTexts, offsets_of
from wire.vocabulary import RequestClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest(Work):
    """Texts, pairs or lists of ids whose scores are wanted."""

    outputs: OutputKind = OutputKind.LOGITS
    alone: frozenset[int] = frozenset()  # indices of texts without a partner, "" in pair_texts, if others have one
    raw_scores: bool = False  # without an activation
    is_bounded: bool = False  # with softmax or, of one label, sigmoid; otherwise as the model's files say


async def classify(pipeline: Pipeline, request: ClassifyRequest, trace: Trace) -> Embedded:
    """Scores float32 [items, labels]. Raises RequestError; cancelling it drops the work everywhere."""
    has_pairs = bool(request.pair_texts)
    has_texts_alone = not has_pairs or bool(request.alone)
    if has_texts_alone and request.model.instruction is not None and request.texts is not None:
        raise InvalidRequest(
            f"{request.field} must be pairs: this model scores a query with a document", param=request.field
        )
    tokenize = partial(_tokenize_mixed, pipeline, request) if has_pairs and has_texts_alone else None
    computed = await pipeline.compute(request, trace, tokenize=tokenize)
    scores = computed.results[OutputKind.LOGITS].values
    activation = request.model.activation
    if not request.raw_scores:
        has_own = not request.is_bounded and activation is not Activation.SOFTMAX
        scores = await (activated(scores, activation) if has_own else bounded(scores))
    return Embedded(scores, computed.num_tokens, computed.tokens.truncated)


async def _tokenize_mixed(pipeline: Pipeline, request: ClassifyRequest, request_class: RequestClass) -> TokenizedTexts:
    """Token ids in the order of the request. The tokenizer pool takes texts or pairs, so it is asked twice.

    Raises TextRefused with the index in the request.
    """
    texts, pair_texts = request.texts or (), request.pair_texts
    alone = sorted(request.alone)
    paired = [index for index in range(len(texts)) if index not in request.alone]
    parts = []
    for places, seconds in ((alone, ()), (paired, [pair_texts[index] for index in paired])):
        part = replace(request, texts=[texts[index] for index in places], pair_texts=seconds)
        try:
            parts.append((places, await pipeline.token_ids(part, request_class)))
        except TextRefused as refused:
            index = places[refused.index] if refused.index >= 0 else -1
            raise TextRefused(
                refused.reason, index, num_tokens=refused.num_tokens, max_tokens=refused.max_tokens
            ) from None
    return _merged(parts, len(texts))


def _merged(parts: Sequence[tuple[Sequence[int], TokenizedTexts]], num_texts: int) -> TokenizedTexts:
    """Several as one; each comes with the places of its texts."""
    ids: list[NDArray[np.int32]] = [np.zeros(0, np.int32)] * num_texts
    types = list(ids)
    truncated = np.zeros(num_texts, np.uint8)
    for places, part in parts:
        of_part = np.zeros_like(part.token_ids) if part.token_type_ids is None else part.token_type_ids
        for place, (start, stop) in zip(places, pairwise(part.offsets.tolist()), strict=True):
            ids[place], types[place] = part.token_ids[start:stop], of_part[start:stop]
        truncated[places] = part.truncated
    all_types = np.concatenate(types)
    return TokenizedTexts(
        np.concatenate(ids),
        offsets_of(np.array([len(each) for each in ids])),
        truncated,
        all_types if all_types.any() else None,
    )


def labels_of(model: ServedModel, num_scores: int) -> Sequence[str]:
    """The names of the scores; transformers' names if the model has none."""
    return model.labels or [f"LABEL_{number}" for number in range(num_scores)]
