"""How near embeddings computed with fewer bits are to those in float32, and whether that is near enough.

Rows of many models have a few numbers that are large and almost the same in every row. Beside these, a wrong row looks
right. So rows are compared without the mean row. Each has length 1 before, as where users compare them.

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

    min_cosine: float  # of a row and its float32 row; -1 to 1
    median_cosine: float
    overlap: float  # share of the nearest ten texts of each text that are the same
    num_texts: int

    @property
    def is_hardly_lower(self) -> bool:
        """Whether `--dtype auto` may take it for float32."""
        return self.min_cosine >= _MIN_COSINE and self.median_cosine >= _MIN_MEDIAN and self.overlap >= _MIN_OVERLAP

    @property
    def in_words(self) -> str:
        """For people."""
        return (
            f"over {self.num_texts} English texts the cosine to float32 rows without the mean row is "
            f"{self.min_cosine:.5f} at least and {self.median_cosine:.5f} in the middle, and {self.overlap:.1%} of "
            f"each text's nearest {_NUM_NEAREST} are the same"
        )


def fidelity(found: NDArray[np.float32], expected: NDArray[np.float32]) -> Fidelity:
    """Of float32 rows [N, D], which are finite, and those in float32."""
    rows, right = _of_length_1(found), _of_length_1(expected)
    mean = right.mean(axis=0)
    cosines = (_of_length_1(rows - mean) * _of_length_1(right - mean)).sum(axis=1)
    nearest = _nearest(right)
    num_same = sum(len(set(a) & set(b)) for a, b in zip(_nearest(rows).tolist(), nearest.tolist(), strict=True))
    return Fidelity(float(cosines.min()), float(np.median(cosines)), num_same / max(1, nearest.size), len(right))


def _of_length_1(rows: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return rows / np.maximum(lengths, _SMALLEST)


def _nearest(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """[N, 10] numbers of the other rows that are nearest."""
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, : min(_NUM_NEAREST, len(rows) - 1)]
