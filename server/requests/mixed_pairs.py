"""Tokens of texts and of pairs in one request. The tokenizer pool takes either, so it is asked for both in turn."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from server.requests.pipeline import Pipeline, Work
from tokenizer_pool.messages import TextRefused
from tokenizer_pool.token_ids import TokenizedTexts, offsets_of
from wire.vocabulary import RequestClass


async def tokenize_mixed(pipeline: Pipeline, request: Work, request_class: RequestClass) -> TokenizedTexts:
    """In the order of the request, whose pair_texts are empty where a text is alone.

    Raises TextRefused with the index in the request.
    """
    texts, pair_texts = request.texts or (), request.pair_texts
    alone = [index for index, text in enumerate(pair_texts) if not text]
    paired = [index for index, text in enumerate(pair_texts) if text]
    parts = []
    for places, seconds in ((alone, ()), (paired, [pair_texts[index] for index in paired])):
        part = replace(request, texts=[texts[index] for index in places], pair_texts=seconds)
        try:
            parts.append((places, await pipeline.tokenize(part, request_class)))
        except TextRefused as refused:
            index = places[refused.index] if refused.index >= 0 else -1
            raise TextRefused(
                refused.reason, index, num_tokens=refused.num_tokens, max_tokens=refused.max_tokens
            ) from None
    return _merged(parts, len(texts))


def _merged(parts: Sequence[tuple[Sequence[int], TokenizedTexts]], num_texts: int) -> TokenizedTexts:
    """One of several, where each says at which places its texts are."""
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
