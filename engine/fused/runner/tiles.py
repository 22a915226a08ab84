"""Tables of tiles: which queries attend to which keys, computed from cu_seqlens. Knows no tensors.

The columns of a table are described in engine.fused.model.ops.Tiles.

Tiles of long sequences come first, and of each sequence the last tile: with a causal mask it has the most work.
Programs start in this order, so the last ones to run, when some multiprocessors have no work left, are short.
"""

import numpy as np
from numpy.typing import NDArray

from engine.fused.model.ops import TILE_FIELDS

BLOCKS = (16, 32, 64, 128)
POOLED_BLOCK = 16  # the minimum of matrix units; only one of the queries is used

# How fast tiles of a size go through their products, full ones of 128 being 1. Estimates, to be replaced by measured
# ones: tiles of 64 read keys and values twice as often; smaller ones are too small for Hopper's wgmma, and read more.
_RATES = {16: 0.25, 32: 0.45, 64: 0.8, 128: 1.0}
_KEYS = 64  # keys in a step, seen or not
_FIXED = 64  # the fixed cost of a tile (queries in, rows out), in keys


def tile_table(cu_seqlens: NDArray[np.int32], *, block: int) -> NDArray[np.int32]:
    """The tiles int32 [N, TILE_FIELDS] of all tokens of sequences with the bounds cu_seqlens, int32 [B + 1]."""
    starts, lengths = cu_seqlens[:-1], np.diff(cu_seqlens)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    counts = -(-lengths // block)
    sequence = np.repeat(np.arange(len(counts)), counts)
    num_after = np.arange(len(sequence)) - (np.cumsum(counts) - counts)[sequence]  # tiles of the sequence
    position = (counts[sequence] - 1 - num_after) * block
    start, length = starts[sequence], lengths[sequence]
    return _table(start + position, np.minimum(length - position, block), position, start, length)


def pooled_tile_table(cu_seqlens: NDArray[np.int32], pooled: NDArray[np.int32]) -> NDArray[np.int32]:
    """The tiles int32 [B, TILE_FIELDS] of one query a sequence, the token pooled[i]. Empty sequences have none."""
    starts, lengths = cu_seqlens[:-1], np.diff(cu_seqlens)
    has_query = (lengths > 0).astype(np.int32)
    numbers = np.arange(len(pooled), dtype=np.int32)
    return _table(numbers, has_query, pooled - starts, starts, lengths) * has_query[:, None]


def max_num_tiles(num_tokens: int, num_seqs: int, *, block: int) -> int:
    """The most tiles that this many tokens in this many sequences can need."""
    num_used = min(num_seqs, num_tokens)
    return num_used + (num_tokens - num_used) // block


def choose_block(cu_seqlens: NDArray[np.int32]) -> int:
    """The fastest size of tiles: small ones waste less on short sequences, large ones are faster per query.

    Alone among their like: up to 16 tokens 16, 32 tokens 32, 64 tokens 64; longer ones 128, but 64 where that saves
    half a tile of few. Batches of several lengths go by the sum.
    """
    lengths = np.diff(cu_seqlens).astype(np.int64)
    keys = -(-lengths // _KEYS) * _KEYS + _FIXED
    return min(BLOCKS, key=lambda block: int((-(-lengths // block) * keys).sum()) * block / _RATES[block])


def _table(*columns: NDArray[np.signedinteger]) -> NDArray[np.int32]:
    table = np.empty((len(columns[0]), TILE_FIELDS), np.int32)
    for number, column in enumerate(columns):
        table[:, number] = column
    return table
