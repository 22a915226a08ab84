"""Packs a batch into one int32 block, so that one copy moves it to the device, and unpacks the block there.

The block, each part beginning at a multiple of 32 numbers and padded as engine.fused.model.ops says:
token ids T | positions T | token types T (where there are any) | cu_seqlens B + 1 | tiles N x 5 | pooled tiles B x 5 |
pooled B

Shapes: T tokens and B sequences with padding, N tiles.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.model.ops import TILE_FIELDS, Inputs, Tiles
from engine.fused.runner.shape import Shape
from engine.fused.runner.tiles import POOLED_BLOCK, pooled_tile_table, tile_table
from engine.model.positions import position_ids
from engine.types import Batch

_ALIGNMENT = 32  # numbers: 128 bytes, which a GPU reads at a time


@dataclass(frozen=True, slots=True)
class Layout:
    """The place of each part in a block, including padding."""

    token_ids: slice
    positions: slice
    token_type_ids: slice  # empty if there are none
    cu_seqlens: slice
    tiles: slice
    pooled_tiles: slice
    pooled: slice
    size: int  # numbers in the block


class _Parts:
    """Divides a block, from its beginning."""

    def __init__(self) -> None:
        self.end = 0

    def next(self, size: int) -> slice:
        start = self.end
        self.end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return slice(start, start + size)


@functools.lru_cache(maxsize=1024)
def layout(shape: Shape) -> Layout:
    """The layout of a shape, which is the same for all its batches."""
    parts = _Parts()
    return Layout(
        token_ids=parts.next(shape.num_tokens),
        positions=parts.next(shape.num_tokens),
        token_type_ids=parts.next(shape.num_tokens if shape.has_types else 0),
        cu_seqlens=parts.next(shape.num_seqs + 1),
        tiles=parts.next(shape.num_tiles * TILE_FIELDS),
        pooled_tiles=parts.next(shape.num_seqs * TILE_FIELDS),
        pooled=parts.next(shape.num_seqs),
        size=parts.end,
    )


def views(block: Tensor, shape: Shape) -> Inputs:
    """The parts of a packed block on the device, as views."""
    places = layout(shape)
    tiles = Tiles(block[places.tiles].view(-1, TILE_FIELDS), shape.block)
    pooled_tiles = Tiles(block[places.pooled_tiles].view(-1, TILE_FIELDS), POOLED_BLOCK)
    return Inputs(
        token_ids=block[places.token_ids],
        positions=block[places.positions],
        token_type_ids=block[places.token_type_ids] if shape.has_types else None,
        cu_seqlens=block[places.cu_seqlens],
        pooled=block[places.pooled],
        tiles=tiles,
        pooled_tiles=pooled_tiles,
        max_seqlen=shape.max_seqlen,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """Packs the batches of one model."""

    vocab_size: int
    num_types: int  # token types of the model; 0 = it ignores them
    padding_idx: int | None  # see engine.model.positions
    pooling: str  # "cls", "mean" or "last"

    def write(self, block: NDArray[np.int32], batch: Batch, shape: Shape) -> None:
        """Write all parts of a block. Raises ValueError for an invalid batch: an id outside a table would make the GPU
        unusable for all batches.
        """
        self._check(batch)
        places = layout(shape)
        _fill(block[places.token_ids], batch.token_ids)
        _fill(block[places.positions], position_ids(batch, self.padding_idx))
        if shape.has_types:
            assert batch.token_type_ids is not None
            _fill(block[places.token_type_ids], batch.token_type_ids)
        _fill(block[places.cu_seqlens], batch.cu_seqlens, rest=batch.num_tokens)
        _fill(block[places.tiles], tile_table(batch.cu_seqlens, block=shape.block).reshape(-1))
        pooled = self._pooled(batch.cu_seqlens)
        _fill(block[places.pooled], pooled)
        _fill(block[places.pooled_tiles], pooled_tile_table(batch.cu_seqlens, pooled).reshape(-1))

    def _pooled(self, cu_seqlens: NDArray[np.int32]) -> NDArray[np.int32]:
        return cu_seqlens[1:] - 1 if self.pooling == "last" else cu_seqlens[:-1]

    def _check(self, batch: Batch) -> None:
        if not batch.num_seqs or np.diff(batch.cu_seqlens).min() < 1:
            raise ValueError("a sequence without tokens")
        if not _are_below(batch.token_ids, self.vocab_size):
            raise ValueError(f"a token id is not one of the {self.vocab_size}")
        if self.num_types and batch.token_type_ids is not None and not _are_below(batch.token_type_ids, self.num_types):
            raise ValueError(f"a token type is not one of the {self.num_types}")


def _fill(place: NDArray[np.int32], values: NDArray[np.int32], rest: int = 0) -> None:
    place[: len(values)] = values
    place[len(values) :] = rest


def _are_below(numbers: NDArray[np.int32], end: int) -> bool:
    """Whether all numbers are in 0 … end - 1. Read as unsigned, negative ones are too large."""
    return int(numbers.view(np.uint32).max()) < end
