"""How near rows are to those they stand for: rows without a direction."""

import numpy as np

from engine.fused.quantization.fidelity import fidelity


def test_rows_of_zeros_are_the_same() -> None:
    reference = np.array([[0, 0], [1, 2], [3, 1]], np.float32)
    assert fidelity(reference.copy(), reference).minimum > 0.999999


def test_a_row_that_became_zeros_is_as_wrong_as_can_be() -> None:
    reference = np.array([[1, 1], [1, 2], [3, 1]], np.float32)
    rows = reference.copy()
    rows[0] = 0
    assert fidelity(rows, reference).minimum == -1
