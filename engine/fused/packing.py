"""Packs a batch into one int32 block, so that one copy moves it to the device, and unpacks the block there.

The block, each part beginning at a multiple of 32 numbers and padded as engine.fused.model.ops says:
token ids U | positions U | token types U (where there are any) | cu_seqlens B + 1 | tiles N x 6 | pooled tiles B x 6 |
pooled B | places T (where sequences share prefixes)

Batches that may run as a CUDA graph are padded to few enough shapes to keep a graph of each. Others are padded to the
next multiple of 16.

Tiles say which queries attend to which keys; the columns of their table are described in engine.fused.model.ops.Tiles.
Tiles of long sequences come first, and of each sequence the last tile: with a causal mask it has the most work.
Programs start in this order, so the last ones to run, when some multiprocessors have no work left, are short.

Of a batch whose sequences share prefixes both U and T are padded. T is twice U, or as many times 2 as it takes: few
shapes again, and room that is not used costs next to nothing. Other batches have no such part, and nothing is launched
for it.

Shapes: T tokens and B sequences with padding, N tiles; U tokens that are computed, which are all where no prefixes are
shared.
"""

import bisect
import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.model.ops import TILE_FIELDS, Inputs, Tiles
from engine.rows.shared_prefixes import unique_tokens
from engine.rows.with_numpy import last_tokens, num_visible, position_ids
from engine.types import MAX_SENT, Batch, OutputKind

# fmt: off
_TOKEN_BUCKETS = (
    16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384,
)
# fmt: on
_BUCKET_STEP = 4096  # above the last bucket, for a single long sequence
_TOKEN_ALIGNMENT = 16  # matrix units take this many rows at a time
_PART_ALIGNMENT = 32  # numbers: 128 bytes, which a GPU reads at a time
_NO_LIMIT = 1 << 30  # replaced by the engine's own limit
_SEQUENCE_BUCKETS = (1, 8, 64, 256, 1024, 4096, _NO_LIMIT)
ROWS_OF_SEQUENCES = OutputKind.POOLED | OutputKind.LOGITS  # give one row a sequence

BLOCKS = (16, 32, 64, 128)
POOLED_BLOCK = 16  # the minimum of matrix units; only one of the queries is used

# How fast tiles of a size go through their products, full ones of 128 being 1. Estimates, to be replaced by measured
# ones: tiles of 64 read keys and values twice as often; smaller ones are too small for Hopper's wgmma, and read more.
_RATES = {16: 0.25, 32: 0.45, 64: 0.8, 128: 1.0}
_KEYS = 64  # keys in a step, seen or not
_FIXED = 64  # the fixed cost of a tile (queries in, rows out), in keys


@dataclass(frozen=True, slots=True)
class Shape:
    """All that the buffers and kernels of a batch depend on. A CUDA graph holds for all batches of its shape."""

    num_tokens: int  # U
    num_seqs: int  # B
    num_tiles: int  # N
    block: int  # at most so many queries a tile
    has_types: bool
    outputs: OutputKind
    is_worth_a_graph: bool  # whether a CUDA graph is worth recording when it comes again
    num_places: int = 0  # T, where prefixes are shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Chooses the shapes of one engine's batches."""

    max_num_tokens: int  # U of a batch
    max_num_seqs: int
    max_seqlen: int
    has_token_types: bool  # whether the model has token types
    max_graph_tokens: int  # the most of a batch that runs as a CUDA graph: larger ones hide the launching of kernels
    outputs: OutputKind  # all that it computes

    @property
    def largest(self) -> Shape:
        """The shape that takes the most memory."""
        num_tokens = _aligned(self.max_num_tokens)
        num_seqs = min(self.max_num_seqs, num_tokens)
        num_tiles = max_num_tiles(num_tokens, num_seqs, block=_TOKEN_ALIGNMENT)
        return Shape(
            num_tokens,
            num_seqs,
            num_tiles,
            _TOKEN_ALIGNMENT,
            self.has_token_types,
            self.outputs,
            is_worth_a_graph=False,
            num_places=self._max_num_places,
        )

    @property
    def _max_num_places(self) -> int:
        return _aligned(MAX_SENT * self.max_num_tokens)

    def of(self, batch: Batch) -> Shape:
        """The shape of this batch. Raises ValueError if it exceeds a limit."""
        longest, shared = batch.max_seqlen, shared_of(batch)
        num_computed = batch.num_tokens - (0 if shared is None else int(shared.sum()))
        is_too_large = num_computed > self.max_num_tokens or batch.num_tokens > self._max_num_places
        if longest > self.max_seqlen or is_too_large or batch.num_seqs > self.max_num_seqs:
            raise ValueError(f"{batch.num_seqs} sequences of up to {longest} tokens are over the engine's limits")
        bucket = _at_least(num_computed, token_buckets(self.max_num_tokens))
        is_worth_a_graph = batch.outputs in ROWS_OF_SEQUENCES and bucket <= self.max_graph_tokens
        num_tokens = _aligned(bucket if is_worth_a_graph else num_computed)
        num_seqs = min(_at_least(batch.num_seqs, _SEQUENCE_BUCKETS), self.max_num_seqs, num_tokens)
        if batch.outputs == OutputKind.SPARSE:  # no graph, and a sequence of padding has the maxima of all words too
            num_seqs = batch.num_seqs
        block = choose_block(batch.cu_seqlens, shared)
        return Shape(
            num_tokens=num_tokens,
            num_seqs=num_seqs,
            num_tiles=max_num_tiles(num_tokens, num_seqs, block=block),
            block=block,
            has_types=self.has_token_types and batch.token_type_ids is not None,
            outputs=batch.outputs,
            is_worth_a_graph=is_worth_a_graph,
            num_places=0 if shared is None else self._num_places(batch.num_tokens, num_tokens, is_worth_a_graph),
        )

    def _num_places(self, num_sent: int, num_tokens: int, is_worth_a_graph: bool) -> int:
        if not is_worth_a_graph:
            return _aligned(num_sent)
        room = 2 * num_tokens
        while room < num_sent:
            room *= 2
        return min(room, self._max_num_places)


def shared_of(batch: Batch) -> NDArray[np.int32] | None:
    """Leading tokens [B] of each sequence that are computed with the one before; None = each token for itself."""
    return None if batch.shared is None or not batch.shared.any() else batch.shared


@functools.lru_cache
def token_buckets(max_num_tokens: int) -> tuple[int, ...]:
    """Sizes in tokens to which batches are padded where graphs are recorded of them. The last is the limit."""
    above = range(_TOKEN_BUCKETS[-1] + _BUCKET_STEP, max_num_tokens, _BUCKET_STEP)
    return (*(size for size in (*_TOKEN_BUCKETS, *above) if size < max_num_tokens), max_num_tokens)


def row_counts(max_num_tokens: int, max_num_seqs: int) -> tuple[int, ...]:
    """How many rows matrix products usually have: all tokens of a batch, or the pooled ones, padded; ascending.

    Batches that are too large for graphs have any multiple of 16.
    """
    tokens = [_aligned(size) for size in token_buckets(max_num_tokens)]
    seqs = [size for size in (*_SEQUENCE_BUCKETS, max_num_seqs) if size <= min(max_num_seqs, tokens[-1])]
    return tuple(sorted({*tokens, *seqs}))


def _at_least(number: int, buckets: tuple[int, ...]) -> int:
    """The first bucket that is large enough, or the last."""
    return buckets[min(bisect.bisect_left(buckets, number), len(buckets) - 1)]


def _aligned(num_tokens: int) -> int:
    return -(-num_tokens // _TOKEN_ALIGNMENT) * _TOKEN_ALIGNMENT


def tile_table(
    cu_seqlens: NDArray[np.int32],
    *,
    block: int,
    num_keys: NDArray[np.signedinteger] | None = None,
    shared: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]:
    """The tiles int32 [N, TILE_FIELDS] of all rows of sequences with the bounds cu_seqlens, int32 [B + 1].

    num_keys: [B], how many of a sequence's tokens all of its tokens see, from the first on; None = all.
    shared: [B], how many of a sequence's first tokens have their rows in sequences before; None = none.
    """
    lengths = np.diff(cu_seqlens)
    without_row = np.zeros_like(lengths) if shared is None else shared
    num_rows = lengths - without_row
    first_row = np.cumsum(num_rows) - num_rows
    order = np.argsort(-num_rows, kind="stable")
    counts = -(-num_rows // block)[order]
    place = np.repeat(np.arange(len(counts)), counts)
    num_after = np.arange(len(place)) - (np.cumsum(counts) - counts)[place]  # tiles of the sequence
    rows_before = (counts[place] - 1 - num_after) * block
    sequence = order[place]
    return _table(
        first_row[sequence] + rows_before,
        np.minimum(num_rows[sequence] - rows_before, block),
        without_row[sequence] + rows_before,
        cu_seqlens[sequence],
        (lengths if num_keys is None else num_keys)[sequence],
        sequence,
    )


def pooled_tile_table(cu_seqlens: NDArray[np.int32], pooled: NDArray[np.int32]) -> NDArray[np.int32]:
    """The tiles int32 [B, TILE_FIELDS] of one query a sequence, the token pooled[i]. Empty sequences have none."""
    starts, lengths = cu_seqlens[:-1], np.diff(cu_seqlens)
    has_query = (lengths > 0).astype(np.int32)
    numbers = np.arange(len(pooled), dtype=np.int32)
    return _table(numbers, has_query, pooled - starts, starts, lengths, numbers) * has_query[:, None]


def max_num_tiles(num_tokens: int, num_seqs: int, *, block: int) -> int:
    """The most tiles that this many tokens in this many sequences can need."""
    num_used = min(num_seqs, num_tokens)
    return num_used + (num_tokens - num_used) // block


def choose_block(cu_seqlens: NDArray[np.int32], shared: NDArray[np.int32] | None = None) -> int:
    """The fastest size of tiles: small ones waste less on short sequences, large ones are faster per query.

    Alone among their like: up to 16 tokens 16, 32 tokens 32, 64 tokens 64; longer ones 128, but 64 where that saves
    half a tile of few. Batches of several lengths go by the sum. shared: see tile_table.
    """
    lengths = np.diff(cu_seqlens).astype(np.int64)
    num_rows = lengths if shared is None else lengths - shared
    keys = -(-lengths // _KEYS) * _KEYS + _FIXED
    return min(BLOCKS, key=lambda block: int((-(-num_rows // block) * keys).sum()) * block / _RATES[block])


def _table(*columns: NDArray[np.signedinteger]) -> NDArray[np.int32]:
    table = np.empty((len(columns[0]), TILE_FIELDS), np.int32)
    for number, column in enumerate(columns):
        table[:, number] = column
    return table


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
    places: slice  # empty if no prefixes are shared
    size: int  # numbers in the block


@functools.lru_cache(maxsize=1024)
def layout(shape: Shape) -> Layout:
    """The layout of a shape, which is the same for all its batches."""
    sizes = {
        "token_ids": shape.num_tokens,
        "positions": shape.num_tokens,
        "token_type_ids": shape.num_tokens if shape.has_types else 0,
        "cu_seqlens": shape.num_seqs + 1,
        "tiles": shape.num_tiles * TILE_FIELDS,
        "pooled_tiles": shape.num_seqs * TILE_FIELDS,
        "pooled": shape.num_seqs,
        "places": shape.num_places,
    }
    parts, end = {}, 0
    for name, size in sizes.items():
        parts[name] = slice(end, end + size)
        end += -(-size // _PART_ALIGNMENT) * _PART_ALIGNMENT
    return Layout(**parts, size=end)


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
        places=block[places.places] if shape.num_places else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """Packs the batches of one model."""

    vocab_size: int
    num_types: int  # token types of the model; 0 = it ignores them
    padding_idx: int | None  # see engine.rows.with_numpy
    pooling: str  # "cls", "mean" or "last"
    padding_id: int | None = None  # with "last", see engine.rows.with_numpy.last_tokens
    hides_tokens: bool = False  # whether tokens that fill a query up are hidden from the others

    def write(self, block: NDArray[np.int32], batch: Batch, shape: Shape) -> None:
        """Write all parts of a block. Raises ValueError for an invalid batch: an id outside a table would make the GPU
        unusable for all batches.
        """
        self._check(batch)
        places = layout(shape)
        shared = shared_of(batch)
        unique = None if shared is None else unique_tokens(batch)
        computed = slice(None) if unique is None else unique.first
        _fill(block[places.token_ids], batch.token_ids[computed])
        _fill(block[places.positions], position_ids(batch, self.padding_idx)[computed])
        if shape.has_types:
            assert batch.token_type_ids is not None
            _fill(block[places.token_type_ids], batch.token_type_ids[computed])
        _fill(block[places.cu_seqlens], batch.cu_seqlens, rest=batch.num_tokens)
        num_keys = num_visible(batch) if self.hides_tokens else None
        tiles = tile_table(batch.cu_seqlens, block=shape.block, num_keys=num_keys, shared=shared)
        _fill(block[places.tiles], tiles.reshape(-1))
        pooled = self._pooled(batch)
        _fill(block[places.pooled], pooled if unique is None else unique.places[pooled])
        _fill(block[places.pooled_tiles], pooled_tile_table(batch.cu_seqlens, pooled).reshape(-1))
        if unique is not None:
            _fill(block[places.places], unique.places, rest=-1)

    def _pooled(self, batch: Batch) -> NDArray[np.int32]:
        if self.pooling == "last":
            return last_tokens(batch, self.padding_id).astype(np.int32)
        return batch.cu_seqlens[:-1]

    def _check(self, batch: Batch) -> None:
        if not batch.num_seqs or np.diff(batch.cu_seqlens).min() < 1:
            raise ValueError("a sequence without tokens")
        if not _are_below(batch.token_ids, self.vocab_size):
            raise ValueError(f"a token id is not one of the {self.vocab_size}")
        if self.num_types and batch.token_type_ids is not None and not _are_below(batch.token_type_ids, self.num_types):
            raise ValueError(f"a token type is not one of the {self.num_types}")


def _fill(place: NDArray[np.int32], values: NDArray[np.signedinteger], rest: int = 0) -> None:
    place[: len(values)] = values
    place[len(values) :] = rest


def _are_below(numbers: NDArray[np.int32], end: int) -> bool:
    """Whether all numbers are in 0 … end - 1. Read as unsigned, negative ones are too large."""
    return int(numbers.view(np.uint32).max()) < end
