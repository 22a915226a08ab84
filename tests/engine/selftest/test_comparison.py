"""How rows are judged: beside large numbers that all share, where rounding explains a difference, in deep models."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.model.model_folder import read
from engine.selftest import selfcheck
from engine.selftest.comparison import TOLERANCE, agreement, comparable, is_near, largest_difference
from engine.types import Batch, EngineLimits, OutputKind, Results, Rows, RowsDiffer
from tests.engine.engines import model_info
from tests.engine.selftest.deep_models import MISTAKES, measured
from tests.engine.tiny_models import save
from tests.tiers import full

NUMBERS = np.random.default_rng(0)
ROWS = NUMBERS.normal(size=(40, 64)).astype(np.float32)
OTHERS = NUMBERS.normal(size=(40, 64)).astype(np.float32)
OUTLIER = np.eye(1, 64, 7, dtype=np.float32)  # one dimension


def rounded(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """To bfloat16, whose numbers are the upper half of float32's, to the nearest."""
    return ((rows.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)


def test_wrong_rows_beside_an_outlier_dimension_are_seen() -> None:
    """The outlier alone made the largest difference small."""
    expected, found = ROWS + 200 * OUTLIER, OTHERS + 200 * OUTLIER
    assert largest_difference(found, expected) < TOLERANCE["bfloat16"]
    near = agreement(found, expected, dtype="bfloat16")
    assert near.min_cosine < 0.5
    assert not is_near(near, dtype="bfloat16")


def test_one_wrong_row_is_seen() -> None:
    found = ROWS.copy()
    found[11] = OTHERS[11]
    assert not is_near(agreement(found, ROWS, dtype="fp8"), dtype="fp8")


@pytest.mark.parametrize("outlier", [0, 200, 5000])
def test_rounding_is_no_difference(outlier: int) -> None:
    """Of an outlier too, where a step of bfloat16 is as large as other numbers."""
    expected = ROWS + outlier * OUTLIER
    near = agreement(rounded(expected), expected, dtype="bfloat16")
    assert near.min_cosine == pytest.approx(1.0)
    assert near.difference == 0.0


def test_rows_that_are_all_the_same_and_single_scores_have_no_direction() -> None:
    same = np.ones((9, 16), np.float32)
    assert is_near(agreement(same, same, dtype="float32"), dtype="float32")
    scores = np.linspace(0.5, 0.5001, 9, dtype=np.float32)[:, None]
    assert is_near(agreement(scores + np.float32(1e-6), scores, dtype="float32"), dtype="float32")
    assert not is_near(agreement(scores + np.float32(1e-2), scores, dtype="float32"), dtype="float32")


def test_sparse_rows_without_entries_are_the_same() -> None:
    """A text may have no word with a weight, and all texts of a test may have none."""
    empty = Rows(np.zeros((0, 2), np.float32), np.zeros(4, np.int32))
    found = agreement(*comparable(OutputKind.SPARSE, empty, empty), dtype="bfloat16")
    assert is_near(found, dtype="bfloat16")
    assert largest_difference(empty.values, empty.values, scale=1.0) == 0
    one = Rows(np.array([[7, 0.5]], np.float32), np.array([0, 0, 1, 1], np.int32))
    assert not is_near(agreement(*comparable(OutputKind.SPARSE, one, empty), dtype="bfloat16"), dtype="bfloat16")


def test_sparse_rows_have_a_number_for_each_id_of_either() -> None:
    found = Rows(np.array([[3, 1.0], [9, 2.0], [4, 5.0]], np.float32), np.array([0, 2, 3], np.int32))
    expected = Rows(np.array([[3, 1.5], [4, 5.0]], np.float32), np.array([0, 1, 2], np.int32))
    rows, others = comparable(OutputKind.SPARSE, found, expected)
    assert rows.tolist() == [[1.0, 0.0, 2.0], [0.0, 5.0, 0.0]]
    assert others.tolist() == [[1.5, 0.0, 0.0], [0.0, 5.0, 0.0]]


class Leaking:
    """In bfloat16. Its rows share large numbers; with a neighbour full of one id the other rows are those of others."""

    info = model_info(dtype="bfloat16", dimensions=32)
    limits = EngineLimits(max_num_tokens=4096, max_num_seqs=64, max_seqlen=64)

    def __init__(self, *, leaks: bool) -> None:
        self._leaks = leaks

    def compute_alone(self, batch: Batch) -> Results:
        sequences = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
        is_full = [len(each) > 5 and len(set(each[1:-1].tolist())) == 1 for each in sequences]
        rows = np.zeros((len(sequences), 32), np.float32)
        rows[:, (3, 7)] = 100, -60
        for number, sequence in enumerate(sequences):
            seed = int(sequence.sum()) * 1000 + len(sequence) + (self._leaks and any(is_full) and not is_full[number])
            rows[number] += np.random.default_rng(seed).normal(size=32)
        return {OutputKind.POOLED: Rows(rows)}


def test_another_text_s_row_beside_a_neighbour_is_seen(tmp_path: Path) -> None:
    folder = read(save("bert", tmp_path / "model"))
    selfcheck.check(Leaking(leaks=False), folder, dtype="bfloat16")  # type: ignore[arg-type]
    with pytest.raises(RowsDiffer, match="depend on the batch"):
        selfcheck.check(Leaking(leaks=True), folder, dtype="bfloat16")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [np.full_like(ROWS, np.nan), ROWS[:-1]])
def test_nothing_that_is_no_row_is_near(wrong: NDArray[np.float32]) -> None:
    assert not is_near(agreement(wrong, ROWS, dtype="bfloat16"), dtype="bfloat16")


def test_one_number_may_differ_more_where_the_directions_agree() -> None:
    """As those beside an outlier dimension do in deep models; scores have no direction, so theirs may not."""
    error = np.zeros_like(ROWS)
    error[3, 5] = 0.15 * np.abs(ROWS - ROWS.mean(axis=0)).max()
    near = agreement(ROWS + error, ROWS, dtype="bfloat16")
    assert 0.1 < near.difference < 0.2
    assert is_near(near, dtype="bfloat16")
    assert not is_near(agreement(ROWS + 2 * error, ROWS, dtype="bfloat16"), dtype="bfloat16")
    scores, wrong = ROWS[:, :1], ROWS[:, :1].copy()
    wrong[3] += 0.2 * np.abs(scores).max()
    assert not is_near(agreement(wrong, scores, dtype="bfloat16"), dtype="bfloat16")


# Those that the limit of bfloat16 does not see everywhere: docs/decisions/0019-limits-of-the-self-test.md.
_FAINT = {("gemma3_text", "window"), ("gemma3_text", "theta")}


@pytest.mark.parametrize("kind", ["qwen3", *full("bert", "modernbert", "gemma3_text")])
@pytest.mark.parametrize("outlier", [False, *full(True)])
def test_a_deep_model(kind: str, outlier: bool) -> None:
    found = dict(measured(kind, 24, gain=1.0, outlier=outlier, dtype="bfloat16"))
    for name in ("correct", "another order"):
        assert is_near(found[name], dtype="bfloat16"), (name, found[name])
    for name in () if outlier else (*MISTAKES[kind], "scaling"):
        if (kind, name) not in _FAINT:
            assert not is_near(found[name], dtype="bfloat16"), (name, found[name])
