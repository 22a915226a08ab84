"""The kernels of SPARSE rows against the reference, whatever the slices, and what memory they take."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.fused.kernels import vocabulary
from engine.fused.kernels.vocabulary import vocabulary_weights
from engine.fused.model.ops import TILE_FIELDS, RaggedRows, Tiles, WordScores
from engine.fused.model.reference import ReferenceOps
from engine.fused.packing import BLOCKS
from tests.engine.fused.kernels.samples import DEVICE, DTYPES, Samples, assert_alike, bounds_of, dense_of, tiles_of
from tests.tiers import full, full_but

SEQLENS = (3, 40, 1, 17, 0, 130, 16, 0)  # two of them padding
NUM_PADDED = 5  # tokens, and tiles
NUM_WORDS = 300  # three blocks of them, the last one not full
MAX_EXTRA_BYTES = 300_000_000


class Scored:
    """Hidden states of some sequences, those of padding NaN, and the matrix of words."""

    def __init__(
        self,
        seqlens: tuple[int, ...] = SEQLENS,
        *,
        width: int = 80,
        dtype: torch.dtype = torch.float32,
        has_bias: bool = True,
        is_log_twice: bool = False,
    ) -> None:
        samples = Samples(width)
        self.seqlens = seqlens
        self.hidden = samples.rows(sum(seqlens) + NUM_PADDED, width, dtype)
        self.hidden[sum(seqlens) :] = torch.nan
        bias = samples.rows(1, NUM_WORDS)[0] if has_bias else None
        self.scores = WordScores(samples.rows(NUM_WORDS, width, dtype) / width**0.5, bias, is_log_twice)

    def by_kernels(self, block: int = 32, **limits: int) -> RaggedRows:
        tiles = tiles_of(self.seqlens, block, num_padded=NUM_PADDED)
        return vocabulary_weights(self.hidden, self.scores, tiles, bounds_of(self.seqlens), **limits)

    def check(self, block: int = 32, **limits: int) -> None:
        """The kernels give what the reference gives."""
        tiles = tiles_of(self.seqlens, block, num_padded=NUM_PADDED)
        expected = ReferenceOps().vocabulary_weights(self.hidden, self.scores, tiles, bounds_of(self.seqlens))
        assert len(expected.entries) > 100
        assert_alike(self.by_kernels(block, **limits), expected)


ONE_BLOCK_A_SLICE = {"max_maxima": 1}
TWO_BLOCKS_A_SLICE = {"max_maxima": 2 * 128 * len(SEQLENS)}


@pytest.mark.parametrize("limits", [{}, ONE_BLOCK_A_SLICE, *full(TWO_BLOCKS_A_SLICE)])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_largest_scores(block: int, limits: dict[str, int]) -> None:
    Scored().check(block, **limits)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", full_but([100], [64, 100, 128, 768]))
def test_every_dtype_and_width(width: int, dtype: torch.dtype, has_bias: bool) -> None:
    Scored(width=width, dtype=dtype, has_bias=has_bias, is_log_twice=has_bias).check()


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 129])
def test_one_sequence(length: int) -> None:
    Scored((length,)).check(16)


def test_rows_and_words_may_lie_apart() -> None:
    scored = Scored()
    scored.hidden = scored.hidden.repeat(1, 2)[:, 7:87]
    words = scored.scores.words.repeat(1, 2)[:, 7:87]
    scored.scores = WordScores(words, scored.scores.bias, is_log_twice=False)
    scored.check()


@pytest.mark.parametrize("limits", [{}, ONE_BLOCK_A_SLICE])
def test_nan_stays_and_spoils_no_other_sequence(limits: dict[str, int]) -> None:
    scored = Scored()
    clean = dense_of(scored.by_kernels(), NUM_WORDS)
    scored.hidden[44, 3] = torch.nan  # of the sequence of 17
    spoilt = dense_of(scored.by_kernels(**limits), NUM_WORDS)
    assert spoilt[3].isnan().all()
    others = [number for number in range(len(SEQLENS)) if number != 3]
    assert torch.equal(spoilt[others], clean[others])
    scored.scores.words[77] = torch.nan
    spoilt = dense_of(scored.by_kernels(**limits), NUM_WORDS)
    assert spoilt[[number for number in others if SEQLENS[number]], 77].isnan().all()
    assert not spoilt[4].any()


def test_scores_of_zero_ties_and_the_smallest() -> None:
    """-0.0 and what is below 0 have no entry. The largest counts once, and numbers far below 1 keep their digits."""
    hidden = (
        torch.tensor([-1.0, 2e-30, 2e-30, 0.0], device=DEVICE)[:, None].repeat(1, 16) * torch.eye(16, device=DEVICE)[0]
    )
    words = torch.zeros(NUM_WORDS, 16, device=DEVICE)
    words[5, 0], words[6, 0], words[7, 0] = 1.0, -1.0, -0.0
    rows = vocabulary_weights(hidden, WordScores(words, None, False), tiles_of((4,), 16), bounds_of((4,)))
    assert rows.counts.tolist() == [2]
    assert rows.entries[:2].tolist() == [[5.0, pytest.approx(2e-30)], [6.0, pytest.approx(math.log(2))]]
    without = vocabulary_weights(hidden[3:], WordScores(words, None, False), tiles_of((1,), 16), bounds_of((1,)))
    assert without.counts.tolist() == [0]


@pytest.mark.parametrize("limits", [{}, ONE_BLOCK_A_SLICE])
def test_entries_that_do_not_fit_are_counted_and_left_out(limits: dict[str, int]) -> None:
    scored = Scored()
    whole = scored.by_kernels()
    rows = scored.by_kernels(**limits, max_entries=200)
    assert rows.entries.shape == (200, 2)
    assert torch.equal(rows.counts, whole.counts)
    if not limits:
        assert torch.equal(rows.entries, whole.entries[:200])


# --- memory


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all that torch's operations make anew, kept or not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = op(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and not op.is_view and not op._schema.is_mutable:
            self.num_bytes += found.nbytes
        return found


class Launched:
    """Stands in for a kernel, and does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *_, **__: None


@pytest.mark.parametrize("num_words", [30_522, 250_002])
@pytest.mark.parametrize(
    ("num_tokens", "num_seqs"), [(8192, 1), (8192, 64), (8192, 1024), (16_384, 1024), (32_768, 4096), (8192, 8192)]
)
def test_extra_memory_is_bounded(
    num_tokens: int, num_seqs: int, num_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kernel in ("_take_maxima", "_count", "_write", "_move"):
        monkeypatch.setattr(vocabulary, kernel, Launched())
    empty = partial(torch.empty, device="meta")
    scores = WordScores(empty((num_words, 768), dtype=torch.bfloat16), empty(num_words), is_log_twice=False)
    hidden, bounds = empty((num_tokens, 768), dtype=torch.bfloat16), empty(num_seqs + 1, dtype=torch.int32)
    tiles = Tiles(empty((num_tokens // 16, TILE_FIELDS), dtype=torch.int32), 16)
    with Allocated() as allocated:
        rows = vocabulary_weights(hidden, scores, tiles, bounds)
    assert rows.entries.nbytes <= allocated.num_bytes <= MAX_EXTRA_BYTES
