"""Tokens that are computed once where sequences of a batch begin alike (RadixMLP, arXiv 2601.15013).

In a causal model a token's hidden state depends on what stands before it alone, so the states of a common prefix are
equal in all sequences. The layers of single tokens compute each unique token once; attention needs each sequence whole,
so what it takes is gathered, and of what it gives one copy is kept.

Shapes: T tokens of all sequences, U unique tokens, B sequences.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.types import Batch


@dataclass(frozen=True, slots=True)
class UniqueTokens:
    """The unique tokens of a batch.

    first   int64 [U], increasing: the token of the batch that is computed for all that are equal to it
    places  int64 [T]: the place among the unique tokens of each token of the batch
    """

    first: NDArray[np.int64]
    places: NDArray[np.int64]


def unique_tokens(batch: Batch) -> UniqueTokens | None:
    """None where no sequence shares anything with the one before."""
    if batch.shared is None or not batch.shared.any():
        return None
    bounds, shared = batch.cu_seqlens.tolist(), batch.shared.tolist()
    is_first = np.ones(batch.num_tokens, np.bool_)
    for start, num_shared in zip(bounds, shared, strict=False):
        is_first[start : start + num_shared] = False
    first = np.flatnonzero(is_first)
    places = np.cumsum(is_first) - 1
    before = 0
    for (start, _), num_shared in zip(pairwise(bounds), shared, strict=True):
        places[start : start + num_shared] = places[before : before + num_shared]
        before = start
    return UniqueTokens(first, places)
