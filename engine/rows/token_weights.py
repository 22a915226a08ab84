"""From the weights of tokens to those of each text's token ids: bge-m3's lexical weights. Plain numpy, for all engines.

Shapes: T tokens of B sequences, N entries of all sequences.
"""

import numpy as np
from numpy.typing import NDArray


def largest_of_each_id(
    weights: NDArray[np.float32],
    token_ids: NDArray[np.int32],
    seqlens: NDArray[np.integer],
    *,
    unused_ids: NDArray[np.int32],
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Entries [N, 2], each token id of a sequence and its largest weight, and the bounds [B + 1] of sequences in them.

    From weights [T] and token_ids [T], sequence after sequence. Ids rise in a sequence; those without a weight and
    unused ones are left out. An id below 2**24 is exact in float32.
    """
    sequence = np.repeat(np.arange(len(seqlens)), seqlens)
    order = np.lexsort((token_ids, sequence))
    ids, sequence = token_ids[order], sequence[order]
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1]) | (sequence[1:] != sequence[:-1])
    largest = np.maximum.reduceat(weights[order], np.flatnonzero(is_first))
    ids, sequence = ids[is_first], sequence[is_first]
    is_kept = (largest != 0) & ~np.isin(ids, unused_ids)  # NaN is kept, to be noticed
    entries = np.stack((ids[is_kept].astype(np.float32), largest[is_kept]), axis=1)
    bounds = np.zeros(len(seqlens) + 1, np.int32)
    np.cumsum(np.bincount(sequence[is_kept], minlength=len(seqlens)), out=bounds[1:])
    return entries, bounds
