"""Requests whose items are tokenized in different ways: pairs beside texts alone, token ids beside texts."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from server.requests.work import Work
from tokenizer_pool.messages import TextRefused
from tokenizer_pool.token_ids import TokenizedTexts, offsets_of

Group = tuple[Sequence[int], Work]  # places in the whole request, and a request for these items alone


def texts_and_ids(request: Work) -> list[Group]:
    """The texts of a request that has both, and the lists of ids."""
    texts, token_ids = request.texts or (), request.token_ids or ()
    with_text = [index for index, text in enumerate(texts) if text]
    with_ids = [index for index, text in enumerate(texts) if not text]
    return [
        (with_text, replace(_sized(request, with_text), texts=[texts[index] for index in with_text], token_ids=None)),
        (with_ids, replace(_sized(request, with_ids), texts=None, token_ids=[token_ids[index] for index in with_ids])),
    ]


def texts_and_pairs(request: Work, without_partner: Collection[int]) -> list[Group]:
    """The texts alone of a request that has both, at these places, and the pairs."""
    texts, pair_texts = request.texts or (), request.pair_texts
    alone = sorted(without_partner)
    paired = [index for index in range(len(texts)) if index not in without_partner]
    return [
        (alone, replace(request, texts=[texts[index] for index in alone], pair_texts=())),
        (
            paired,
            replace(
                request,
                texts=[texts[index] for index in paired],
                pair_texts=[pair_texts[index] for index in paired],
            ),
        ),
    ]


async def tokenized(
    groups: Sequence[Group], num_items: int, tokenize: Callable[[Work], Awaitable[TokenizedTexts]]
) -> TokenizedTexts:
    """Token ids in the order of the request. Raises TextRefused with the index in the request."""
    parts = []
    for places, part in groups:
        try:
            parts.append((places, await tokenize(part)))
        except TextRefused as refused:
            index = places[refused.index] if refused.index >= 0 else -1
            raise TextRefused(
                refused.reason, index, num_tokens=refused.num_tokens, max_tokens=refused.max_tokens
            ) from None
    return _merged(parts, num_items)


def _sized(request: Work, places: Sequence[int]) -> Work:
    """A request is of queries or of documents, never of both, where it has ids."""
    return replace(request, num_queries=len(places) if request.num_queries else 0)


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
