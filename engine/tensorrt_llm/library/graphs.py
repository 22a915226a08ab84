"""The small shapes that CUDA graphs are recorded for, where they are asked for: a lone query is then one launch."""

from collections.abc import Iterable
from dataclasses import dataclass

_BATCH_SIZES = (1, 2, 4, 8)
_NUM_TOKENS = (32, 64, 128, 256, 512, 1024)
_SEQ_LENS = (32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Rounded up to; a graph is recorded for every combination that can be. What is larger runs without."""

    batch_sizes: tuple[int, ...]
    num_tokens: tuple[int, ...]
    seq_lens: tuple[int, ...]


def buckets(*, max_num_seqs: int, max_num_tokens: int, max_seqlen: int) -> Buckets:
    """Those within the limits; where a limit is smaller than all of them, the limit itself."""
    return Buckets(
        _within(_BATCH_SIZES, max_num_seqs), _within(_NUM_TOKENS, max_num_tokens), _within(_SEQ_LENS, max_seqlen)
    )


def _within(sizes: Iterable[int], limit: int) -> tuple[int, ...]:
    return tuple(size for size in sizes if size <= limit) or (limit,)
