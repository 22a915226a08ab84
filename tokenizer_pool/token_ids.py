"""Many texts as flat token ids: joined from pieces, or made of the lists of ids that a request gives.

Runs in a frontend. Knows a model's limits as numbers; nothing of tokenizers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tokenizer_pool.messages import Refusal, TextRefused, TokenizedPiece, Truncation


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """The N texts of one request as flat ids, in the request's order."""

    token_ids: NDArray[np.int32]  # [offsets[-1]]
    offsets: NDArray[np.int32]  # [N + 1], text i is token_ids[offsets[i] : offsets[i + 1]]
    truncated: NDArray[np.uint8]  # [N], 1 where tokens were cut off


def join(pieces: Sequence[TokenizedPiece]) -> TokenizedTexts:
    """The pieces of a request in one. A single piece is handed on as it is, without a copy."""
    if len(pieces) == 1:
        (piece,) = pieces
        return TokenizedTexts(piece.token_ids, piece.offsets, piece.truncated)
    seqlens = np.concatenate([np.diff(piece.offsets) for piece in pieces])
    return TokenizedTexts(
        np.concatenate([piece.token_ids for piece in pieces]),
        _offsets(seqlens),
        np.concatenate([piece.truncated for piece in pieces]),
    )


def check_token_ids(
    token_ids: Sequence[Sequence[int]], *, vocab_size: int, max_seqlen: int, truncation: Truncation
) -> TokenizedTexts:
    """Ids of a request as they stand: no special tokens, no prompt, cut where text would be.

    Raises TextRefused: EMPTY, OUT_OF_VOCABULARY (ids that would be cut off are checked too), TOO_LONG.
    """
    seqlens = np.fromiter(map(len, token_ids), np.int64, len(token_ids))
    if not seqlens.all():
        raise TextRefused(Refusal.EMPTY, int(np.argmin(seqlens)))
    flat = _flat(token_ids, vocab_size)
    outside = (flat < 0) | (flat >= vocab_size)
    if outside.any():
        index = int(np.searchsorted(_offsets(seqlens), np.argmax(outside), side="right")) - 1
        raise TextRefused(Refusal.OUT_OF_VOCABULARY, index)
    is_long = seqlens > max_seqlen
    if is_long.any():
        if truncation is Truncation.NONE:
            index = int(np.argmax(is_long))
            raise TextRefused(Refusal.TOO_LONG, index, num_tokens=int(seqlens[index]), max_tokens=max_seqlen)
        flat = _cut(flat, seqlens, max_seqlen, truncation)
        seqlens = np.minimum(seqlens, max_seqlen)
    return TokenizedTexts(flat.astype(np.int32), _offsets(seqlens), is_long.astype(np.uint8))


def _flat(token_ids: Sequence[Sequence[int]], vocab_size: int) -> NDArray[np.int64]:
    try:
        return np.array(list(chain.from_iterable(token_ids)), np.int64)
    except OverflowError:  # an id of more than 64 bits
        index = next(i for i, ids in enumerate(token_ids) if not 0 <= min(ids) <= max(ids) < vocab_size)
        raise TextRefused(Refusal.OUT_OF_VOCABULARY, index) from None


def _offsets(seqlens: NDArray[np.integer]) -> NDArray[np.int32]:
    offsets = np.zeros(len(seqlens) + 1, np.int32)
    np.cumsum(seqlens, out=offsets[1:])
    return offsets


def _cut(
    flat: NDArray[np.int64], seqlens: NDArray[np.int64], max_seqlen: int, truncation: Truncation
) -> NDArray[np.int64]:
    """The first or the last `max_seqlen` ids of each list."""
    starts = np.cumsum(seqlens) - seqlens
    place = np.arange(len(flat)) - np.repeat(starts, seqlens)  # of each id in its own list
    if truncation is Truncation.RIGHT:
        return flat[place < max_seqlen]
    return flat[place >= np.repeat(seqlens, seqlens) - max_seqlen]
