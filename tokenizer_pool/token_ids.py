"""Many texts as flat token ids: joined from pieces, or made of the lists of ids that a request gives.

Runs in a frontend. Knows a model's limits as numbers; nothing of tokenizers.
"""

import asyncio
from collections.abc import Sequence
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import TokenizedTexts, offsets_of
from wire.parts import DTYPES, Part

SLICE_IDS = 16_384  # checked in one go, a quarter of a millisecond; then others have their turn


def join(pieces: Sequence[TokenizedTexts]) -> TokenizedTexts:
    """The pieces of a request in one."""
    seqlens = np.concatenate([np.diff(piece.offsets) for piece in pieces])
    return TokenizedTexts(
        np.concatenate([piece.token_ids for piece in pieces]),
        offsets_of(seqlens),
        np.concatenate([piece.truncated for piece in pieces]),
        {part: _joined(pieces, part) for part in {part for piece in pieces for part in piece.parts}},
    )


def _joined(pieces: Sequence[TokenizedTexts], part: Part) -> NDArray[Any]:
    return np.concatenate([piece.parts.get(part, np.zeros(len(piece.token_ids), DTYPES[part])) for piece in pieces])


async def check_token_ids(
    token_ids: Sequence[Sequence[int]], *, vocab_size: int, max_seqlen: int, truncation: Truncation
) -> TokenizedTexts:
    """Ids of a request as they stand: no special tokens, no prompt, cut where text would be.

    Many ids are checked slice by slice, and the event loop does other things in between.
    Raises TextRefused: EMPTY, OUT_OF_VOCABULARY (ids that would be cut off are checked too), TOO_LONG.
    """
    seqlens = np.fromiter(map(len, token_ids), np.int64, len(token_ids))
    if not seqlens.all():
        raise TextRefused(TextRefusal.EMPTY, int(np.argmin(seqlens)))
    offsets = offsets_of(seqlens)
    flat = await flatten(token_ids, offsets, vocab_size=vocab_size)
    is_long = seqlens > max_seqlen
    if is_long.any():
        if truncation is Truncation.NONE:
            raise TextRefused(TextRefusal.TOO_LONG, int(np.argmax(is_long)), max_tokens=max_seqlen)
        flat = _cut(flat, offsets, max_seqlen=max_seqlen, truncation=truncation)
        offsets = offsets_of(np.minimum(seqlens, max_seqlen))
    return TokenizedTexts(flat, offsets, is_long.astype(np.uint8))


async def flatten(
    token_ids: Sequence[Sequence[int]], offsets: NDArray[np.int32], *, vocab_size: int
) -> NDArray[np.int32]:
    """All ids in one row, int32 [offsets[-1]]. Raises TextRefused where one is not from 0 to `vocab_size` - 1.

    Many ids are taken slice by slice, and the event loop does other things in between.
    """
    flat = np.empty(offsets[-1], np.int32)
    ids = chain.from_iterable(token_ids)
    for start in range(0, len(flat), SLICE_IDS):
        if start:
            await asyncio.sleep(0)
        part = list(islice(ids, SLICE_IDS))
        try:
            numbers = np.fromiter(part, np.int64, len(part))
        except OverflowError:  # an id of more than 64 bits
            numbers = np.array([min(max(token_id, -1), vocab_size) for token_id in part], np.int64)
        is_foreign = numbers.view(np.uint64) >= vocab_size  # negative ids too, since they are huge as unsigned ones
        if is_foreign.any():
            index = int(np.searchsorted(offsets, start + np.argmax(is_foreign), side="right")) - 1
            raise TextRefused(TextRefusal.OUT_OF_VOCABULARY, index)
        flat[start : start + len(part)] = numbers
    return flat


def _cut(
    flat: NDArray[np.int32], offsets: NDArray[np.int32], *, max_seqlen: int, truncation: Truncation
) -> NDArray[np.int32]:
    """The first or the last `max_seqlen` ids of each list."""
    kept = slice(max_seqlen) if truncation is Truncation.RIGHT else slice(-max_seqlen, None)
    return np.concatenate([flat[start:stop][kept] for start, stop in pairwise(offsets.tolist())])
