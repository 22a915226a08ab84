"""How rows are judged: beside large numbers that all share, where rounding explains a difference, in deep models."""

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.selftest.comparison import TOLERANCE, agreement, is_near, largest_difference
from tests.engine.selftest.deep_models import MISTAKES, measured
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
