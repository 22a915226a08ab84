"""Mini-batches of sequences that begin alike, whose common tokens are computed once. Knows no executor.

The sequences that share with the one before them are a family: the documents of one request of a reranker, behind its
template and query. A family is cut by its unique tokens, since these are what takes time: the layers of single tokens
compute them alone, and attention alone sees each sequence whole and padded.

Shapes: B sequences of a mini-batch, S tokens of its longest and up to a multiple, U unique tokens and up to a multiple.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.types import Batch

UNIQUE, PLACES = "unique", "places"
# Unique tokens of a mini-batch. Of 285-token pairs of a reranker with 80 in common 9 take so many: 96 % of what all
# hundred of them would save at once.
GROUP_TOKENS = 2048
_SLACK = 1 / 4  # by so much of their part groups are larger, before there is one more
# Padded tokens for each unique one, and for the longest sequence: without a bound one short request took a gigabyte.
MOST_PADDED = 4
_MIN_UNIQUE = 128  # smaller ones cost more than they gain by giving each stream a share
# A token of padding costs attention with all S tokens of its sequence: about as much as S / 2,048 of a token's layers,
# with 1,024 numbers a row. A mini-batch may spend half of what it saves on that.
_PADDED_SCORES = 1024
_FREE_ORDER = 0.9  # of what is shared: a family that has so much in common to all may be put in any order
_MULTIPLE, _MULTIPLE_OF_MANY, _MANY = 8, 32, 512  # each other number of tokens takes time once and memory for ever


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences, each of which but the first may begin as the one before it."""

    numbers: NDArray[np.int64]  # [B], of the sequences in the batch
    seqlens: NDArray[np.int64]  # [B]
    shared: NDArray[np.int64]  # [B], leading tokens of each that are those of the one before it here; the first has 0

    @property
    def num_unique(self) -> int:
        """Tokens that are computed."""
        return int(self.seqlens.sum() - self.shared.sum())

    def part(self, start: int, end: int) -> "Group":
        """Some of it."""
        shared = self.shared[start:end].copy()
        shared[:1] = 0
        return Group(self.numbers[start:end], self.seqlens[start:end], shared)

    def ordered(self) -> "Group":
        """From the longest down, where that costs little of what they share. So a mini-batch has little padding."""
        common = int(self.shared[1:].min())
        if common * (len(self.numbers) - 1) < _FREE_ORDER * self.shared.sum():
            return self
        order = np.argsort(-self.seqlens, kind="stable")
        return Group(self.numbers[order], self.seqlens[order], np.append(0, np.full(len(order) - 1, common)))

    @property
    def pads_too_much(self) -> bool:
        """Whether padding takes more than half of the time that sharing saves."""
        longest = int(self.seqlens.max())
        padding = longest * len(self.seqlens) - int(self.seqlens.sum())
        return padding * longest > _PADDED_SCORES * int(self.shared.sum())

    def is_too_wide(self, max_unique: int) -> bool:
        """Whether attention, which takes each sequence whole and padded, has so many tokens that it takes longer than
        the layers, and much memory."""
        longest = int(self.seqlens.max())
        return longest * len(self.seqlens) > MOST_PADDED * max(max_unique, longest)


def groups(batch: Batch, *, num_streams: int, max_unique: int = GROUP_TOKENS) -> list[Group]:
    """The sequences that share tokens with another one. Each stream gets some of them, if there are enough."""
    families = [family.ordered() for family in _families(batch)]
    total = sum(family.num_unique for family in families)
    return [
        group
        for family in families
        for group in _cut(family, max_unique, num_parts=-(-num_streams * family.num_unique // total))
    ]


def _families(batch: Batch) -> Iterator[Group]:
    if batch.shared is None or not batch.shared.any():
        return
    seqlens = np.diff(batch.cu_seqlens).astype(np.int64)
    starts = np.flatnonzero(batch.shared == 0)
    for start, end in pairwise((*starts.tolist(), batch.num_seqs)):
        if end - start > 1:
            yield Group(np.arange(start, end), seqlens[start:end], batch.shared[start:end].astype(np.int64))


def _cut(family: Group, max_unique: int, *, num_parts: int) -> Iterator[Group]:
    """Groups of about the same number of unique tokens, in order: so many, if that is worth it, or more.

    Each group computes the common beginning again. So it has other tokens for at least half as long, even where it is
    then larger than `max_unique`.
    """
    common = int(family.shared[1:].min())
    others = family.num_unique - common
    room = max(max_unique - common, common // 2)
    worth = others // max(common // 2, _MIN_UNIQUE // 2)
    even = common + others / max(1, math.ceil(others / room - _SLACK), min(num_parts, worth))
    start = 0
    for end in range(1, len(family.numbers)):
        taken = family.part(start, end + 1)
        own = int(family.seqlens[end] - family.shared[end])
        if taken.num_unique - own / 2 > even or taken.pads_too_much or taken.is_too_wide(max_unique):
            yield family.part(start, end)
            start = end
    yield family.part(start, len(family.numbers))


def unique_inputs(is_token: NDArray[np.bool_], shared: NDArray[np.int64] | None) -> dict[str, NDArray[np.int64]]:
    """The inputs UNIQUE [1, U], the places of the unique tokens among the B * S of a mini-batch, and PLACES [B, S], the
    number of each token among the unique ones. Padding has the number of another token, and is seen by none.

    is_token: [B, S]. shared: see Group; None = nothing is shared.
    """
    num_seqs, length = is_token.shape
    if num_seqs == 1:  # its padding is computed, too, so the lengths are those of `alone`
        row = np.arange(length)[None]
        return {UNIQUE: row, PLACES: row}
    is_first = is_token
    if shared is not None:
        is_first = is_token & (np.arange(length) >= shared[:, None])
    places = (np.cumsum(is_first) - 1).reshape(is_token.shape)
    if shared is not None:
        for number, num_shared in enumerate(shared.tolist()):
            if num_shared:
                places[number, :num_shared] = places[number - 1, :num_shared]
    unique = np.flatnonzero(is_first)
    multiple = _MULTIPLE if len(unique) <= _MANY else _MULTIPLE_OF_MANY
    filler = np.zeros(-len(unique) % multiple, np.int64)  # the first token again
    return {UNIQUE: np.append(unique, filler)[None], PLACES: np.where(is_token, places, 0)}
