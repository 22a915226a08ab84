"""Many texts as flat token ids: joined from pieces, or made of the lists of ids that a request gives.

Runs in a frontend. Knows a model's limits as numbers; nothing of tokenizers.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import TokenizedPiece

_T = TypeVar("_T", bound=np.integer[Any])
SLICE_IDS = 16_384  # checked in one go, a quarter of a millisecond; then others have their turn


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """The N texts of one request as flat ids, in the request's order."""

    token_ids: NDArray[np.int32]  # [offsets[-1]]
    offsets: NDArray[np.int32]  # [N + 1], text i is token_ids[offsets[i] : offsets[i + 1]]
    truncated: NDArray[np.uint8]  # [N], 1 where tokens were cut off
    token_type_ids: NDArray[np.int32] | None = None  # [offsets[-1]]; None = all zero
    marks: NDArray[np.uint8] | None = None  # [offsets[-1]], bits of wire.parts: PROMPT_TOKEN, …; None = all zero

    def between(self, first: int, stop: int) -> "TokenizedTexts":
        """The texts from `first` on and before `stop`, as views."""
        start, end = int(self.offsets[first]), int(self.offsets[stop])
        offsets = self.offsets[first : stop + 1] - np.int32(start)
        return self._with(lambda values: values[start:end], offsets, self.truncated[first:stop])

    def taken(self, texts: NDArray[np.integer]) -> "TokenizedTexts":
        """The texts at these places, in their order."""
        seqlens = np.diff(self.offsets)[texts]
        offsets = offsets_of(seqlens)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[texts] - offsets[:-1], seqlens)
        return self._with(lambda values: values[places], offsets, self.truncated[texts])

    def inserted(self, places: NDArray[np.integer], counts: NDArray[np.integer], token_id: int) -> "TokenizedTexts":
        """The texts with this token before those at `places`, without marks; each text so gets `counts` more tokens."""
        inserted = self._with(
            lambda values: np.insert(values, places, 0), offsets_of(np.diff(self.offsets) + counts), self.truncated
        )
        return replace(inserted, token_ids=np.insert(self.token_ids, places, token_id))

    def marked(self, tokens: slice | NDArray[np.bool_], mark: int) -> "TokenizedTexts":
        """The texts with this mark on these tokens."""
        marks = np.zeros(len(self.token_ids), np.uint8) if self.marks is None else self.marks.copy()
        marks[tokens] |= mark
        return replace(self, marks=marks)

    def _with(
        self, change: Callable[[NDArray[Any]], NDArray[Any]], offsets: NDArray[np.int32], truncated: NDArray[np.uint8]
    ) -> "TokenizedTexts":
        """The same change made to all numbers of tokens."""
        types, marks = self.token_type_ids, self.marks
        return TokenizedTexts(
            change(self.token_ids),
            offsets,
            truncated,
            None if types is None else change(types),
            None if marks is None else change(marks),
        )


def join(pieces: Sequence[TokenizedPiece] | Sequence[TokenizedTexts]) -> TokenizedTexts:
    """The pieces of a request in one. A single piece is handed on as it is, without a copy."""
    if len(pieces) == 1:
        (piece,) = pieces
        return TokenizedTexts(piece.token_ids, piece.offsets, piece.truncated, piece.token_type_ids, piece.marks)
    seqlens = np.concatenate([np.diff(piece.offsets) for piece in pieces])
    return TokenizedTexts(
        np.concatenate([piece.token_ids for piece in pieces]),
        offsets_of(seqlens),
        np.concatenate([piece.truncated for piece in pieces]),
        _joined([(piece.token_type_ids, len(piece.token_ids)) for piece in pieces], np.int32),
        _joined([(piece.marks, len(piece.token_ids)) for piece in pieces], np.uint8),
    )


def _joined(parts: Sequence[tuple[NDArray[_T] | None, int]], dtype: type[_T]) -> NDArray[_T] | None:
    """A part of all pieces, each with its number of tokens; None where no piece has it."""
    if all(part is None for part, _ in parts):
        return None
    return np.concatenate([np.zeros(num_tokens, dtype) if part is None else part for part, num_tokens in parts])


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


def offsets_of(seqlens: NDArray[np.integer]) -> NDArray[np.int32]:
    """The offsets at which each of N lists begins and ends in one row of all of them, int32 [N + 1]."""
    offsets = np.zeros(len(seqlens) + 1, np.int32)
    np.cumsum(seqlens, out=offsets[1:])
    return offsets


def _cut(
    flat: NDArray[np.int32], offsets: NDArray[np.int32], *, max_seqlen: int, truncation: Truncation
) -> NDArray[np.int32]:
    """The first or the last `max_seqlen` ids of each list."""
    kept = slice(max_seqlen) if truncation is Truncation.RIGHT else slice(-max_seqlen, None)
    return np.concatenate([flat[start:stop][kept] for start, stop in pairwise(offsets.tolist())])
