"""Compares the rows that an engine gives with those that it should give. All self-tests use it.

Each engine decides for itself which batches to run, and what to do if rows differ.

Rows of many models have a few numbers that are large and almost the same in every row. Beside these, a wrong row looks
right. So the mean row is taken off before rows are compared. What rounding a number to the type of computing explains
counts as no difference, because it is as large as the numbers beside a large one.

The limits of bfloat16 and float16 are from models of 24 and 36 layers: docs/decisions/0019-limits-of-the-self-test.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.selftest.sample_ids import Sequences
from engine.types import Batch, ModelError, OutputKind, Results, Rows

# Largest difference over largest value, by dtype. Rounding stays below; a leak between sequences is far above.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2, "fp8": 0.2, "nvfp4": 0.3}

_MIN_WIDTH, _MIN_ROWS = 8, 4  # of rows that have a direction and a mean; others are scores, or too few
_SMALLEST = 1e-6  # of a largest value; a head may give zeros
_NEAR_THE_MEAN = 0.1  # of the usual distance to the mean row: rows below have no direction, only noise
_NUM_ROUNDINGS = 2


@dataclass(frozen=True, slots=True)
class _Limits:
    cosine: float  # the least of a row
    difference: float  # the largest, over the largest value; both without the mean row
    of_scores: float  # the same where there is no direction, and the difference alone decides
    rounding: float  # half the relative distance of two neighbouring numbers


_LIMITS = {
    "float32": _Limits(0.99999, 1e-4, 1e-4, 2**-24),
    "float16": _Limits(0.999, 3e-2, 2e-2, 2**-11),
    "bfloat16": _Limits(0.98, 0.2, 0.1, 2**-8),
    "fp8": _Limits(0.9, 0.25, 0.25, 2**-8),
    "nvfp4": _Limits(0.85, 0.35, 0.35, 2**-8),
}


@dataclass(frozen=True, slots=True)
class RowAgreement:
    """How near rows are to the expected ones."""

    min_cosine: float  # of a row; 1 for scores
    difference: float  # the largest, over the largest value
    has_direction: bool = True  # False of scores, and where rows are too few

    @property
    def in_words(self) -> str:
        """The figures for people."""
        return f"the least cosine of a row is {self.min_cosine:.5f}, the largest difference {self.difference:.1e}"


def agreement(found: NDArray[np.float32], expected: NDArray[np.float32], *, dtype: str) -> RowAgreement:
    """Compare float32 rows [N, D], without the mean of the expected ones. dtype: of computing, a key of TOLERANCE.

    NaN if a value is NaN, and a difference of infinity if the shapes differ, so write `if not is_near(…)`.
    """
    if found.shape != expected.shape:
        return RowAgreement(-1.0, float("inf"))
    if not expected.size:  # sparse rows, and none of them has an entry
        return RowAgreement(1.0, 0.0, has_direction=False)
    error = found.astype(np.float64) - expected
    explained = _NUM_ROUNDINGS * _LIMITS[dtype].rounding * np.abs(expected, dtype=np.float64)  # by rounding
    error -= np.clip(error, -explained, explained)
    is_centred = expected.shape[-1] >= _MIN_WIDTH and len(expected) >= _MIN_ROWS
    centred = expected - expected.mean(axis=0, dtype=np.float64) if is_centred else expected.astype(np.float64)
    difference = float(np.abs(error).max() / max(np.abs(centred).max(), _SMALLEST))
    return RowAgreement(_least_cosine(centred + error, centred) if is_centred else 1.0, difference, is_centred)


def is_near(rows: RowAgreement, *, dtype: str) -> bool:
    """Whether rounding explains the difference."""
    limits = _LIMITS[dtype]
    most = limits.difference if rows.has_direction else limits.of_scores
    return rows.min_cosine >= limits.cosine and rows.difference <= most


def _least_cosine(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    lengths = np.linalg.norm(expected, axis=1)
    counts = lengths > _NEAR_THE_MEAN * np.median(lengths)
    if not counts.any():  # all rows are the same
        return 1.0
    products = lengths[counts] * np.maximum(np.linalg.norm(found[counts], axis=1), _SMALLEST)
    return float(((found[counts] * expected[counts]).sum(axis=1) / products).min())


def comparable(kind: OutputKind, found: Rows, expected: Rows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The rows of both [N, D]; sparse ones have a number for each id that either has."""
    if kind is not OutputKind.SPARSE:
        return found.values, expected.values
    ids = np.unique(np.concatenate((found.values[:, 0], expected.values[:, 0])))
    dense = []
    for rows in (found, expected):
        assert rows.offsets is not None
        sequence = np.repeat(np.arange(len(rows.offsets) - 1), np.diff(rows.offsets))
        weights = np.zeros((len(rows.offsets) - 1, len(ids)), np.float32)
        weights[sequence, np.searchsorted(ids, rows.values[:, 0])] = rows.values[:, 1]
        dense.append(weights)
    return dense[0], dense[1]


def joined(parts: Sequence[Results]) -> Results:
    """The results of batches, one behind the other, as those of one batch."""
    return {kind: _joined([part[kind] for part in parts]) for kind in parts[0]}


def _joined(parts: list[Rows]) -> Rows:
    counts = [np.diff(part.offsets) for part in parts if part.offsets is not None]
    offsets = np.cumsum([0, *np.concatenate(counts)], dtype=np.int32) if counts else None
    return Rows(np.concatenate([part.values for part in parts]), offsets)


def first_of(rows: Rows, num_seqs: int) -> Rows:
    """The rows of the first sequences."""
    if rows.offsets is None:
        return Rows(rows.values[:num_seqs])
    return Rows(rows.values[: rows.offsets[num_seqs]], rows.offsets[: num_seqs + 1])


def batch_of(
    sequences: Sequences,
    outputs: OutputKind = OutputKind.POOLED,
    *,
    model: str = "",
    marks: NDArray[np.uint8] | None = None,
) -> Batch:
    """All sequences in one batch. marks: see Batch."""
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    return Batch(model, outputs, np.concatenate(sequences), cu_seqlens, marks=marks)


def largest_difference(
    found: NDArray[np.float32], expected: NDArray[np.float32], *, scale: float | None = None
) -> float:
    """The largest difference of two float32 arrays, divided by `scale` (None = the largest expected value).

    Infinity if the shapes differ, NaN if a value is NaN. So write `if not difference <= tolerance`.
    """
    if found.shape != expected.shape:
        return float("inf")
    largest = np.abs(found - expected).max(initial=0)  # sparse rows may have no entry
    return float(largest / (np.abs(expected).max() if scale is None else scale))


def not_finite(engine: str, dtype: str) -> ModelError:
    """The error for a model whose rows are NaN or infinite. It says what to try instead."""
    if dtype == "float16":
        instead = "--dtype bfloat16 or float32 may serve it" if engine != "fused" else "--dtype bfloat16 may serve it"
    elif (engine, dtype) == ("transformers", "float32"):
        instead = "its weights may be damaged, and no engine would do better"
    else:
        instead = "--engine transformers --dtype float32 --quantization none may serve it"
    return ModelError(f"the model gives rows that are not finite; {instead}")
