"""The sizes to which batches are padded: few enough to keep a CUDA graph of each. Knows no tensors.

Shapes: T tokens and B sequences with padding, N tiles.
"""

import bisect
import functools
from collections.abc import Callable
from dataclasses import dataclass

from engine.fused.runner.tiles import choose_block, max_num_tiles
from engine.types import Batch, OutputKind

# fmt: off
_TOKEN_BUCKETS = (
    16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384,
)
# fmt: on
_BUCKET_STEP = 4096  # above the last bucket, for a single long sequence
_ALIGNMENT = 16  # tokens; matrix units take this many rows at a time
_NO_LIMIT = 1 << 30  # replaced by the engine's own limit
_SEQUENCE_BUCKETS = (1, 8, 64, 256, 1024, 4096, _NO_LIMIT)
_SEQLEN_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, _NO_LIMIT)
ALL_OUTPUTS = OutputKind.POOLED | OutputKind.TOKENS


@dataclass(frozen=True, slots=True)
class Shape:
    """All that the buffers and kernels of a batch depend on. Batches of the same shape share a CUDA graph."""

    num_tokens: int  # T
    num_seqs: int  # B
    num_tiles: int  # N
    block: int  # at most so many queries a tile
    max_seqlen: int  # no sequence is longer
    has_types: bool
    outputs: OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Chooses the shapes of one engine's batches."""

    max_num_tokens: int  # of a batch
    max_num_seqs: int
    max_seqlen: int
    has_token_types: bool  # whether the model has token types
    # from a bucket for the longest sequence to the max_seqlen of attention kernels; None = they need none
    kernel_max_seqlen: Callable[[int], int] | None = None

    @property
    def largest(self) -> Shape:
        """The shape that takes the most memory."""
        num_tokens = _aligned(self.max_num_tokens)
        num_seqs = min(self.max_num_seqs, num_tokens)
        num_tiles = max_num_tiles(num_tokens, num_seqs, block=_ALIGNMENT)
        return Shape(num_tokens, num_seqs, num_tiles, _ALIGNMENT, self.max_seqlen, self.has_token_types, ALL_OUTPUTS)

    def of(self, batch: Batch) -> Shape:
        """The shape of this batch. Raises ValueError if it exceeds a limit."""
        longest = batch.max_seqlen
        if longest > self.max_seqlen or batch.num_tokens > self.max_num_tokens or batch.num_seqs > self.max_num_seqs:
            raise ValueError(f"{batch.num_seqs} sequences of up to {longest} tokens are over the engine's limits")
        num_tokens = _aligned(_at_least(batch.num_tokens, token_buckets(self.max_num_tokens)))
        num_seqs = min(_at_least(batch.num_seqs, _SEQUENCE_BUCKETS), self.max_num_seqs, num_tokens)
        block = choose_block(batch.cu_seqlens)
        return Shape(
            num_tokens=num_tokens,
            num_seqs=num_seqs,
            num_tiles=max_num_tiles(num_tokens, num_seqs, block=block),
            block=block,
            max_seqlen=self._kernel_max_seqlen(longest),
            has_types=self.has_token_types and batch.token_type_ids is not None,
            outputs=batch.outputs,
        )

    def _kernel_max_seqlen(self, longest: int) -> int:
        if self.kernel_max_seqlen is None:
            return self.max_seqlen
        return min(self.kernel_max_seqlen(min(_at_least(longest, _SEQLEN_BUCKETS), self.max_seqlen)), self.max_seqlen)


@functools.lru_cache
def token_buckets(max_num_tokens: int) -> tuple[int, ...]:
    """Sizes in tokens to which batches are padded. The last is the limit."""
    above = range(_TOKEN_BUCKETS[-1] + _BUCKET_STEP, max_num_tokens, _BUCKET_STEP)
    return (*(size for size in (*_TOKEN_BUCKETS, *above) if size < max_num_tokens), max_num_tokens)


def _at_least(number: int, buckets: tuple[int, ...]) -> int:
    """The first bucket that is large enough, or the last."""
    return buckets[min(bisect.bisect_left(buckets, number), len(buckets) - 1)]


def _aligned(num_tokens: int) -> int:
    return -(-num_tokens // _ALIGNMENT) * _ALIGNMENT
