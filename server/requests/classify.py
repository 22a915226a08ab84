"""Scores of texts or of pairs, by models with labels. Knows no dialect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from engine.types import OutputKind
from server.requests.activation import activated
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
    """Texts, pairs or lists of ids whose scores are wanted. A text without a partner has "" in pair_texts."""

    outputs: OutputKind = OutputKind.LOGITS
    raw_scores: bool = False  # without the model's activation


async def classify(pipeline: Pipeline, request: ClassifyRequest, trace: Trace) -> Embedded:
    """Scores float32 [items, labels]. Raises RequestError; cancelling it drops the work everywhere."""
    has_pairs, has_texts_alone = any(request.pair_texts), not all(request.pair_texts) or not request.pair_texts
    if has_texts_alone and request.model.instruction is not None and request.texts is not None:
        raise InvalidRequest(
            f"{request.field} must be pairs: this model scores a query with a document", param=request.field
        )
    tokenize = partial(_tokenize_mixed, pipeline, request) if has_pairs and has_texts_alone else None
    computed = await pipeline.compute(request, trace, tokenize=tokenize)
    scores = computed.results[OutputKind.LOGITS].values
    if not request.raw_scores:
        activation = request.model.activation
        if activation is Activation.SOFTMAX and scores.shape[1] == 1:
            activation = Activation.SIGMOID  # a softmax of one score is always 1
        scores = await activated(scores, activation)
    return Embedded(scores, computed.num_tokens, computed.tokens.truncated)


async def _tokenize_mixed(pipeline: Pipeline, request: Work, request_class: RequestClass) -> TokenizedTexts:
    """Token ids in the order of the request. The tokenizer pool takes texts or pairs, so it is asked twice.

    Raises TextRefused with the index in the request.
    """
    texts, pair_texts = request.texts or (), request.pair_texts
    alone = [index for index, text in enumerate(pair_texts) if not text]
    paired = [index for index, text in enumerate(pair_texts) if text]
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
