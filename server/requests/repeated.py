"""What the sequences of one request have in common, found where their ids are made: those that are equal are submitted
once, and a model that computes a common prefix once is told how long that is.

Nothing is looked for in other requests. Every request of several texts passes here, on the frontend's event loop: there
is no loop over tokens, and sequences that have nothing in common are soon seen to have nothing.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.types import Results, Rows
from tokenizer_pool.tasks import TokenizedTexts, offsets_of
from wire.frames import Buffer
from wire.parts import DTYPES, OF_SEQUENCES, Part, Parts
from wire.records import light_dataclass

# Tokens of a prefix that are worth to be computed once. Many models begin every text with one or two of their own, and
# an engine has to gather and to put back each token of a batch in which anything is shared.
LEAST_SHARED = 8
_LEAST_PART = 1 / 16  # of a request's tokens, for the same reason: about what the gathering costs

_Values = Mapping[Part, NDArray[Any]]


@light_dataclass(frozen=True, slots=True)
class Packed:
    """The sequences of a request as they are submitted: those that differ, in the order in which they first occur."""

    seqlens: list[int]
    token_ids: Buffer  # int32 [sum(seqlens)]
    parts: Parts
    num_tokens: int  # to be computed: of a prefix that is shared once
    places: NDArray[np.int64] | None = None  # of the request's sequences among these; None = they all differ

    def first_index(self, index: int) -> int:
        """The first of the request's sequences that was submitted as this one; -1 stays."""
        return index if self.places is None or index < 0 else int(np.argmax(self.places == index))

    def spread(self, results: Results) -> Results:
        """A row, or rows, for each of the request's sequences."""
        return results if self.places is None else {kind: _spread(rows, self.places) for kind, rows in results.items()}


def packed(tokens: TokenizedTexts, parts: Parts, *, shares_prefixes: bool) -> Packed:
    """Several texts, with their parts beside the ids, as they are submitted."""
    ids, offsets, num_shared = tokens.token_ids, tokens.offsets, 0
    places = _places(ids, offsets, parts)
    if places is not None or shares_prefixes:
        values = {part: np.frombuffer(parts[part], DTYPES[part]) for part in parts}
        if places is not None:
            ids, offsets, values = _first_of_each(ids, offsets, values, places)
        if shares_prefixes and (shared := shared_prefixes(ids, offsets, values)) is not None:
            values, num_shared = {**values, Part.SHARED: shared}, int(shared.sum())
        parts = {part: values[part].data.cast("B") for part in values}
    return Packed(np.diff(offsets).tolist(), ids.data.cast("B"), parts, len(ids) - num_shared, places)


def _places(ids: NDArray[np.int32], offsets: NDArray[np.int32], parts: Parts) -> NDArray[np.int64] | None:
    """The place of each sequence among those that differ; None where all do."""
    sequences = _cut(ids.tobytes(), offsets, 4)
    if len(set(sequences)) == len(sequences):
        return None
    for part in parts:
        bounds = np.arange(len(offsets)) if part in OF_SEQUENCES else offsets
        of_part = _cut(bytes(parts[part]), bounds, DTYPES[part].itemsize)
        sequences = [one + its_part for one, its_part in zip(sequences, of_part, strict=True)]
    found: dict[bytes, int] = {}
    places = [found.setdefault(one, len(found)) for one in sequences]
    return np.array(places) if len(found) < len(places) else None


def _cut(values: bytes, bounds: NDArray[np.integer], num_bytes: int) -> list[bytes]:
    return [values[start:stop] for start, stop in pairwise((bounds * num_bytes).tolist())]


def _first_of_each(
    ids: NDArray[np.int32], offsets: NDArray[np.int32], values: _Values, places: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], dict[Part, NDArray[Any]]]:
    """The ids, offsets and parts of those that differ."""
    first = np.unique(places, return_index=True)[1]
    is_taken = np.zeros(len(places), np.bool_)
    is_taken[first] = True
    seqlens = np.diff(offsets)
    of_tokens = np.repeat(is_taken, seqlens)
    taken = {part: values[part][is_taken if part in OF_SEQUENCES else of_tokens] for part in values}
    return ids[of_tokens], offsets_of(seqlens[is_taken]), taken


def shared_prefixes(ids: NDArray[np.int32], offsets: NDArray[np.int32], values: _Values) -> NDArray[np.int32] | None:
    """With how many tokens each sequence begins as the one before it does, never all of its own, int32 [B]; None where
    that is not worth to be told.

    ids: [T], of sequences at `offsets` [B + 1]; values: their parts
    """
    starts, seqlens = offsets[:-1], np.diff(offsets)
    shared = np.zeros(len(starts), np.int32)
    most = np.minimum(seqlens[:-1], seqlens[1:] - 1)
    pairs = np.flatnonzero(most >= LEAST_SHARED)  # by the first of each
    last = starts[pairs] + LEAST_SHARED - 1
    pairs = pairs[ids[last] == ids[last - starts[pairs] + starts[pairs + 1]]]
    for part in OF_SEQUENCES & values.keys():
        pairs = pairs[values[part][pairs] == values[part][pairs + 1]]
    of_tokens = [ids, *(values[part] for part in values if part not in OF_SEQUENCES)]
    for pair in pairs.tolist():  # in blocks of all pairs, long prefixes took ten times as long
        num_equal = int(most[pair])
        for numbers in of_tokens:
            first, second = (numbers[start : start + num_equal] for start in starts[pair : pair + 2].tolist())
            num_equal = _num_equal(first, second)
        shared[pair + 1] = num_equal
    shared[shared < LEAST_SHARED] = 0
    return shared if shared.sum() >= max(1, _LEAST_PART * len(ids)) else None


def _num_equal(first: NDArray[Any], second: NDArray[Any]) -> int:
    """How many numbers are equal before the first that differ."""
    is_equal = first == second
    place = int(is_equal.argmin()) if len(is_equal) else 0
    return place if place < len(is_equal) and not is_equal[place] else len(is_equal)


def _spread(rows: Rows, places: NDArray[np.int64]) -> Rows:
    if rows.offsets is None:
        return Rows(rows.values[places])
    seqlens = np.diff(rows.offsets)[places]
    offsets = offsets_of(seqlens)
    taken = np.arange(offsets[-1]) + np.repeat(rows.offsets[places] - offsets[:-1], seqlens)
    return Rows(rows.values[taken], offsets)
