"""How close rows are to reference rows: cosines and rank correlation. Knows neither how they were made nor any limits.

Shapes: B rows of D numbers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]  # [B, D]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Over B rows. Rows that are not finite count as opposite."""

    median: float  # of the cosines between each row and the one that it stands for
    p1: float  # their first percentile
    minimum: float
    rank_correlation: float  # Spearman's, between the similarities of all pairs of rows

    @property
    def text(self) -> str:
        """For a log."""
        return f"cosine median {self.median:.5f}, 1st percentile {self.p1:.5f}, lowest {self.minimum:.5f}"


SAME = Fidelity(1.0, 1.0, 1.0, 1.0)


def fidelity(rows: Rows, reference: Rows) -> Fidelity:
    """Raises ValueError where the shapes differ."""
    if rows.shape != reference.shape:
        raise ValueError(f"rows of {rows.shape} can't be compared with {reference.shape}")
    unit, expected = _unit(rows), _unit(reference)
    found = np.nan_to_num((unit * expected).sum(axis=1), nan=-1.0)
    found[~(rows.any(axis=1) | reference.any(axis=1))] = 1.0  # rows of zeros have no direction, and are the same
    return Fidelity(
        median=float(np.median(found)),
        p1=float(np.percentile(found, 1)),
        minimum=float(found.min()),
        rank_correlation=_correlation(_ranks(_similarities(unit)), _ranks(_similarities(expected))),
    )


def _unit(rows: Rows) -> NDArray[np.float64]:
    """Rows of length 1; NaN where they have none."""
    values = np.where(np.isfinite(rows), rows, np.nan).astype(np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.where(lengths > 0, lengths, np.nan)


def _similarities(unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cosine of each pair of rows."""
    pairs: NDArray[np.float64] = (unit @ unit.T)[np.triu_indices(len(unit), k=1)]
    return pairs


def _ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """From 0 up, NaN last. Equal values get neighbouring ranks; among real numbers there are next to none."""
    return values.argsort(kind="stable").argsort(kind="stable")


def _correlation(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    return float(np.corrcoef(one, other)[0, 1]) if len(one) > 1 else 1.0
