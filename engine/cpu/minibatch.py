"""Cuts a packed batch into small padded mini-batches of sequences of similar length, or of sequences that begin alike
(engine.cpu.shared_prefixes). Knows no executor.

Shapes: T tokens of all sequences, B sequences in a mini-batch, S tokens of its longest and up to a multiple of eight.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from engine.cpu import shared_prefixes
from engine.cpu.shared_prefixes import GROUP_TOKENS, MOST_PADDED, UNIQUE, Group, unique_inputs
from engine.types import Batch
from wire.parts import EXPANSION_TOKEN

INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS, ADAPTERS = "input_ids", "attention_mask", "token_type_ids", "adapters"
# Larger mini-batches are hardly faster on a core, and queries wait longer (measurements: decision 9).
MAX_PADDED_TOKENS = 512
# The fixed cost of a mini-batch, in tokens: 2.5 ms, at 0.11 ms a token of all-MiniLM-L6-v2 on one core.
COST_IN_TOKENS = 24
# A mini-batch is as long as a multiple of this many tokens: each new shape takes time once and memory for ever
# (measurements: decision 9).
MULTIPLE = 8
MAX_SHORT = 64  # tokens of a lone sequence that is padded less
# Smaller mini-batches give each stream a share of the batch; but they are not smaller than this.
MIN_PADDED_TOKENS = 128
# While queries are about, they wait for a mini-batch of other work. So these take about so long, but are no smaller
# than that: bulk would keep less than 85 % of its speed (measurements: decision 9).
GIVING_WAY_SECONDS = 0.012
MIN_GIVING_WAY = 64  # padded tokens


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Some sequences of a batch, side by side."""

    numbers: NDArray[np.int64]  # [B], numbers of the sequences in the batch
    seqlens: NDArray[np.int32]  # [B], their tokens
    index: NDArray[np.int64]  # [B, S], each token's index in the batch; 0 for padding
    is_token: NDArray[np.bool_]  # [B, S]
    group: Group | None = None  # where they begin alike

    @property
    def num_computed(self) -> int:
        """Tokens that the layers compute, as far as this tells how long it takes."""
        return self.index.size if self.group is None else max(self.group.num_unique, self.index.size // MOST_PADDED)


class StreamSpeed:
    """How long a padded token takes on one stream, learned from mini-batches. Threads may use it at the same time: what
    one of them learns may be lost, and the next mini-batch shows it again."""

    def __init__(self) -> None:
        self._seconds_per_token = 0.0  # 0 = not known

    def observe(self, num_padded: int, seconds: float) -> None:
        """A mini-batch of so many padded tokens took so long."""
        newest = seconds / (num_padded + COST_IN_TOKENS)
        known = self._seconds_per_token or newest
        self._seconds_per_token = known + 0.1 * (newest - known)  # known to 90 % after 22 mini-batches

    def seconds_of(self, num_padded: int) -> float:
        """How long a mini-batch of so many padded tokens takes; 0 = not known."""
        return self._seconds_per_token * (num_padded + COST_IN_TOKENS)

    @property
    def max_giving_way(self) -> int:
        """The most padded tokens of a mini-batch that gives way to urgent ones."""
        if not self._seconds_per_token:
            return MIN_PADDED_TOKENS
        in_time = int(GIVING_WAY_SECONDS / self._seconds_per_token) - COST_IN_TOKENS
        return min(MAX_PADDED_TOKENS, max(MIN_GIVING_WAY, in_time))


def alone(batch: Batch, *, max_seqlen: int, multiple: int) -> MiniBatch:
    """A batch of one sequence, as long as a `multiple` of so many tokens if it is short."""
    length = batch.num_tokens
    if not _has_hidden(batch):
        multiple = multiple if length <= MAX_SHORT else MULTIPLE
        length = max(length, min(-(-length // multiple) * multiple, max_seqlen))
    return _of_one(batch.num_tokens, length)


@lru_cache(maxsize=2 * MAX_SHORT)
def _of_one(num_tokens: int, length: int) -> MiniBatch:
    return _mini_batch(np.array([0, num_tokens], np.int32), np.zeros(1, np.int64), length=length)


def cut(
    batch: Batch,
    *,
    num_streams: int,
    max_seqlen: int,
    max_giving_way: int = MIN_PADDED_TOKENS,
    has_loras: bool = False,
) -> list[MiniBatch]:
    """All sequences of a batch, the longest first. The last mini-batches are short, so streams end together.

    `max_seqlen`: tokens of the longest sequence that the model takes, so that no more are padded. `has_loras`: each
    mini-batch has sequences of one adapter alone.

    If the batch gives way, they have at most `max_giving_way` padded tokens, and short ones are between long ones: the
    streams do not all compute long ones at the same time, so an urgent mini-batch soon finds a free stream.

    Sequences that begin alike come first. batch.shared: only of a model that computes what is shared once.
    """
    cu_seqlens = batch.cu_seqlens
    share = MAX_PADDED_TOKENS if num_streams == 1 else int(cu_seqlens[-1]) // num_streams
    max_padded_tokens = max_giving_way if batch.gives_way else min(MAX_PADDED_TOKENS, max(MIN_PADDED_TOKENS, share))
    lengths = _lengths(batch, max_seqlen, multiple=MULTIPLE)
    max_padding = 0 if _has_hidden(batch) else COST_IN_TOKENS
    max_unique = max_giving_way if batch.gives_way else GROUP_TOKENS
    alike = shared_prefixes.groups(batch, num_streams=num_streams, max_unique=max_unique)
    others = np.arange(batch.num_seqs)
    if alike:
        others = np.setdiff1d(others, np.concatenate([group.numbers for group in alike]))
    groups = [
        some[group]
        for some in (_of_each_adapter(batch, others) if has_loras else [others])
        for group in _groups(lengths[some], max_padded_tokens, max_padding=max_padding)
    ]
    groups.sort(key=lambda group: -int(lengths[group[0]]))
    return [
        *(_mini_batch(cu_seqlens, each.numbers, length=int(lengths[each.numbers].max()), group=each) for each in alike),
        *(
            _mini_batch(cu_seqlens, numbers, length=int(lengths[numbers[0]]))
            for numbers in (_spread(groups) if batch.gives_way else groups)
        ),
    ]


def _of_each_adapter(batch: Batch, numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Those of these sequences that each adapter has."""
    if batch.adapters is None:
        return [numbers]
    return [numbers[batch.adapters[numbers] == adapter] for adapter in np.unique(batch.adapters)]


def _lengths(batch: Batch, max_seqlen: int, *, multiple: int) -> NDArray[np.int32]:
    """[B], tokens of each sequence, rounded up to a multiple."""
    seqlens = batch.cu_seqlens[1:] - batch.cu_seqlens[:-1]
    # Rows of hidden tokens can depend on the padding (DeBERTa's do), so batches with them have none.
    multiple = 1 if _has_hidden(batch) else multiple
    lengths: NDArray[np.int32] = np.maximum(seqlens, np.minimum(-(-seqlens // multiple) * multiple, max_seqlen))
    return lengths


def _has_hidden(batch: Batch) -> bool:
    return batch.marked(EXPANSION_TOKEN) is not None


def _groups(rounded: NDArray[np.int32], max_padded_tokens: int, *, max_padding: int) -> Iterator[NDArray[np.int64]]:
    """Sequence numbers from the longest down; `rounded`: tokens of each, rounded up. One too long for a group is alone.

    A group ends before its padding exceeds `max_padding`. If that equals the fixed cost of a mini-batch, one pass gets
    within 2 % of the best cut.
    """
    order = np.argsort(-rounded, kind="stable")
    lengths = rounded[order].tolist()
    if not lengths:
        return
    start = padding = 0
    for end, length in enumerate(lengths):
        padding += lengths[start] - length
        if lengths[start] * (end + 1 - start) > max(max_padded_tokens, lengths[start]) or padding > max_padding:
            yield order[start:end]
            start, padding = end, 0
    yield order[start:]


def _spread(groups: Iterable[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    """Order the sequences from the longest down, with the next two from the other end behind each."""
    left = deque(groups)
    while left:
        yield left.popleft()
        yield from [left.pop() for _ in range(min(2, len(left)))]


def _mini_batch(
    cu_seqlens: NDArray[np.int32], numbers: NDArray[np.int64], *, length: int, group: Group | None = None
) -> MiniBatch:
    starts, ends = cu_seqlens[numbers, None], cu_seqlens[numbers + 1, None]
    seqlens = (ends - starts)[:, 0]
    index = starts + np.arange(length)
    is_token = index < ends
    return MiniBatch(numbers, seqlens, np.where(is_token, index, 0), is_token, group)


def padded(batch: Batch, mini_batch: MiniBatch, names: Collection[str], *, pad_id: int) -> dict[str, NDArray[np.int64]]:
    """The inputs of a mini-batch that have these names, int64 [B, S]; padding is on the right. LORA has one number.

    Models that number positions themselves (RoBERTa and similar) skip tokens that are `pad_id`, in a text as well as in
    the padding. So a row is the same as for the sequence alone. Hidden tokens are masked like padding. Models that
    compute unique tokens alone have the inputs of `unique_inputs`, too.
    """
    own = {}
    if UNIQUE in names:
        own = unique_inputs(mini_batch.is_token, None if mini_batch.group is None else mini_batch.group.shared)
    return {**own, **{name: _input(name, batch, mini_batch, pad_id) for name in names if name not in own}}


def _input(name: str, batch: Batch, mini_batch: MiniBatch, pad_id: int) -> NDArray[np.int64]:
    index, is_token = mini_batch.index, mini_batch.is_token
    match name:
        case "input_ids":
            return np.where(is_token, batch.token_ids[index], pad_id).astype(np.int64)
        case "attention_mask":
            is_hidden = batch.marked(EXPANSION_TOKEN)
            return (is_token if is_hidden is None else is_token & ~is_hidden[index]).astype(np.int64)
        case "token_type_ids" if batch.token_type_ids is not None:
            return (batch.token_type_ids[index] * is_token).astype(np.int64)
        case "adapters" if batch.adapters is not None:
            return (is_token * batch.adapters[mini_batch.numbers, None]).astype(np.int64)
        case "lora":
            return np.array(batch.adapters[mini_batch.numbers[:1]] if batch.adapters is not None else [0], np.int64)
    assert name in (TOKEN_TYPE_IDS, ADAPTERS), name
    return np.zeros(index.shape, np.int64)
