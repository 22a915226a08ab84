"""How near rows are to those they stand for: the figures' definitions, and what a plain cosine does not see."""

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.selftest.fidelity import fidelity

NUM_TEXTS, DIMENSIONS = 60, 48


def rows(*, base: float, seed: int = 0) -> NDArray[np.float32]:
    """Rows of length 1 whose cosines with each other are about `base`."""
    own = np.random.default_rng(seed).normal(size=(NUM_TEXTS, DIMENSIONS))
    own[:, 0] = 0
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    common = np.eye(DIMENSIONS)[0]
    return np.asarray(np.sqrt(base) * common + np.sqrt(1 - base) * own, np.float32)


def turned(exact: NDArray[np.float32], cosine: float) -> NDArray[np.float32]:
    """Rows with this cosine to those given."""
    noise = np.random.default_rng(1).normal(size=exact.shape)
    noise -= (noise * exact).sum(axis=1, keepdims=True) * exact
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    return np.asarray(cosine * exact + np.sqrt(1 - cosine**2) * noise, np.float32)


def test_what_all_rows_share_hides_nothing() -> None:
    """A cosine of 0.998 is four times as far where arbitrary rows have one of 0.75."""
    for base, expected in ((0.0, 0.998), (0.75, 0.992)):
        exact = rows(base=base)
        found = fidelity(turned(exact, 0.998), exact)
        assert found.median_cosine == pytest.approx(expected, abs=4e-4)
        assert found.min_cosine <= found.p1_cosine <= found.median_cosine


def test_figures_are_those_of_their_definitions() -> None:
    exact = np.array([[1, 0], [-1, 0], [0, 3], [0, -2]], np.float32)  # whose mean, at length 1, is 0
    found = fidelity(np.array([[0, 1], [-1, 0], [0, 1], [0, -5]], np.float32), exact)
    assert found.min_cosine == pytest.approx(0)
    assert (found.median_cosine, found.num_texts) == (1, 4)
    assert found.p1_cosine == pytest.approx(0.03)
    assert found.overlap == 1  # all others are among the nearest ten


def test_the_nearest_texts_that_are_the_same_are_counted() -> None:
    exact = rows(base=0.3)
    assert fidelity(exact.copy(), exact).overlap == 1
    near, far = (fidelity(turned(exact, cosine), exact).overlap for cosine in (0.9999, 0.9))
    assert 1 > near > 0.9 > far > 10 / NUM_TEXTS


def test_rows_of_zeros_are_the_same() -> None:
    exact = rows(base=0.3)
    exact[3] = 0
    assert fidelity(exact.copy(), exact).min_cosine == pytest.approx(1)
    lost = exact.copy()
    lost[7] = 0
    assert fidelity(lost, exact).min_cosine < 0.9


def test_a_row_that_is_not_finite_is_as_wrong_as_can_be() -> None:
    exact = rows(base=0.3)
    spoilt = exact.copy()
    spoilt[7, 2] = np.nan
    assert fidelity(spoilt, exact).min_cosine == -1


def test_a_row_that_is_the_mean_is_the_same_as_itself() -> None:
    exact = np.ones((1, 4), np.float32)
    assert fidelity(exact, exact).min_cosine == 1
    assert fidelity(exact, exact).overlap == 1


def test_other_shapes_are_refused() -> None:
    exact = rows(base=0.3)
    with pytest.raises(ValueError, match="can't be compared"):
        fidelity(exact[:2], exact)
