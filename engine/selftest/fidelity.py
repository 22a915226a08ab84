"""How near embeddings computed with fewer bits are to those computed with more: bfloat16, int8 and FP8.

Rows of many models have a few numbers that are large and almost the same in every row. Beside these, a wrong row looks
right: where the cosine of two arbitrary rows is 0.75, one of 0.998 hides an error of 13 % of what tells rows apart. So
rows are compared without the mean row. Each has length 1 before, as where users compare them.

Shapes: N texts, D numbers a row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NUM_NEAREST = 10
_SMALLEST = 1e-12  # of a length; a row may be zero

# bfloat16 instead of float32, where nobody asked for it
_MIN_COSINE, _MIN_MEDIAN, _MIN_OVERLAP = 0.998, 0.9995, 0.99


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Numbers from 0 to 1, where 1 is the same."""

    min_cosine: float  # of a row and the one that it stands for, -1 to 1; -1 of a row that is not finite
    p1_cosine: float  # the first percentile
    median_cosine: float
    overlap: float  # share of the nearest ten texts of each text that are the same
    num_texts: int

    @property
    def is_hardly_lower(self) -> bool:
        """Whether `--dtype auto` may take bfloat16 for float32."""
        return self.min_cosine >= _MIN_COSINE and self.median_cosine >= _MIN_MEDIAN and self.overlap >= _MIN_OVERLAP

    @property
    def figures(self) -> str:
        """For a log."""
        return (
            f"cosine median {self.median_cosine:.5f}, 1st percentile {self.p1_cosine:.5f}, lowest "
            f"{self.min_cosine:.5f} without the mean row, {self.overlap:.1%} of the nearest {_NUM_NEAREST}"
        )

    @property
    def in_words(self) -> str:
        """For people, of embeddings on a CPU."""
        return (
            f"over {self.num_texts} English texts the cosine to float32 rows without the mean row is "
            f"{self.min_cosine:.5f} at least and {self.median_cosine:.5f} in the middle, and {self.overlap:.1%} of "
            f"each text's nearest {_NUM_NEAREST} are the same"
        )


def fidelity(found: NDArray[np.float32], expected: NDArray[np.float32]) -> Fidelity:
    """Of float32 rows [N, D], and of those that they stand for, which are finite. Raises ValueError where the shapes
    differ."""
    if found.shape != expected.shape:
        raise ValueError(f"rows of {found.shape} can't be compared with {expected.shape}")
    is_finite = np.asarray(np.isfinite(found).all(axis=1))
    rows, right = _of_length_1(np.where(is_finite[:, None], found, 0)), _of_length_1(expected)
    mean = right.mean(axis=0)
    cosines = (_of_length_1(rows - mean) * _of_length_1(right - mean)).sum(axis=1)
    cosines[(rows == right).all(axis=1)] = 1.0  # one that is the mean row has no direction
    cosines[~is_finite] = -1.0
    nearest = _nearest(right)
    num_same = sum(len(set(a) & set(b)) for a, b in zip(_nearest(rows).tolist(), nearest.tolist(), strict=True))
    return Fidelity(
        min_cosine=float(cosines.min()),
        p1_cosine=float(np.percentile(cosines, 1)),
        median_cosine=float(np.median(cosines)),
        overlap=num_same / nearest.size if nearest.size else 1.0,
        num_texts=len(right),
    )


def _of_length_1(rows: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return rows / np.maximum(lengths, _SMALLEST)


def _nearest(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """[N, 10] numbers of the other rows that are nearest."""
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, : min(_NUM_NEAREST, len(rows) - 1)]
