"""Holds a freshly compiled model against transformers' own rows, before anything is answered with it."""

import numpy as np
from numpy.typing import NDArray

from engine.cpu.conversion.reference import Reference
from engine.cpu.executor import Executor, Run
from engine.cpu.minibatch import cut, padded
from engine.failures import one_line
from engine.rows.pooling_numpy import Pooling
from engine.selftest.sample_ids import Sequences
from engine.selftest.sequences import num_hidden
from engine.types import EXPANSION_TOKEN, Batch, ModelError, OutputKind

_RowsOfEach = list[NDArray[np.float32]]  # [S, D] of each sequence; where a sequence has one row, S is 1

MIN_COSINE = 0.97  # of any int8 row to its float32 row

# largest difference over largest value: rounding alone; a leak between sequences is a hundred times that
_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
_SMALLEST = 1e-6  # of a largest value; a head may give zeros


def largest_difference(executor: Executor, reference: Reference, *, pad_id: int, dtype: str) -> float:
    """Relative to the largest value. Raises ModelError where it is more than rounding.

    The sequences are computed together and each alone, on one core and on all.
    """
    together, alone = _rows(executor, reference, pad_id=pad_id)
    expected = np.concatenate(reference.rows)
    rows = np.stack([np.concatenate(together), np.concatenate(alone)])
    difference = float(np.abs(rows - expected).max() / max(np.abs(expected).max(), _SMALLEST))
    if difference > _TOLERANCE[dtype]:
        raise ModelError(f"the compiled model differs from transformers' by {difference:.1e} of the largest value")
    return difference


def cosines(executor: Executor, reference: Reference, *, pad_id: int, pooling: Pooling) -> tuple[float, float]:
    """The smallest and the median cosine of pooled rows to the reference's. Raises ModelError below MIN_COSINE.

    The model gives token rows. The sequences are computed as in `largest_difference`.
    """
    expected = _pooled(reference.rows, pooling)
    rows = np.stack([_pooled(rows, pooling) for rows in _rows(executor, reference, pad_id=pad_id)])
    lengths = np.linalg.norm(rows, axis=-1) * np.linalg.norm(expected, axis=-1)
    found = (rows * expected).sum(axis=-1) / lengths
    smallest, median = float(found.min()), float(np.median(found))
    if not smallest >= MIN_COSINE:
        raise ModelError(
            f"--quantization int8 costs this model too much: the cosine to float32 is as low as {smallest:.3f}, "
            f"and {MIN_COSINE} is asked for; serve it with --quantization none"
        )
    return smallest, median


def _pooled(token_rows: _RowsOfEach, pooling: Pooling) -> NDArray[np.float32]:
    return np.concatenate([pooling(rows[None], np.array([len(rows)], np.int32)) for rows in token_rows])


def _rows(executor: Executor, reference: Reference, *, pad_id: int) -> tuple[_RowsOfEach, _RowsOfEach]:
    """Of each sequence, computed together on one core, and each alone on all. Raises ModelError."""
    alone = executor.wide or executor.streams[-1]
    batch = _batch(reference.sequences, hides_tokens=reference.hides_tokens)
    each = [_batch([sequence], hides_tokens=reference.hides_tokens) for sequence in reference.sequences]
    rows = (
        _run(executor.streams[0], executor, batch, pad_id=pad_id),
        [_run(alone, executor, one, pad_id=pad_id)[0] for one in each],
    )
    if not all(np.isfinite(found).all() for found in (*rows[0], *rows[1])):
        raise ModelError("the compiled model gives rows that are not finite")
    return rows


def _batch(sequences: Sequences, *, hides_tokens: bool) -> Batch:
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    types = None
    if hides_tokens:
        types = np.zeros(cu_seqlens[-1], np.int32)
        for sequence, end in zip(sequences, cu_seqlens[1:], strict=True):
            types[end - num_hidden(sequence) : end] = EXPANSION_TOKEN
    return Batch("", OutputKind(0), np.concatenate(sequences), cu_seqlens, types)


def _run(run: Run, executor: Executor, batch: Batch, *, pad_id: int) -> _RowsOfEach:
    """The rows of each sequence, computed as one batch."""
    rows: dict[int, NDArray[np.float32]] = {}
    try:
        for mini_batch in cut(batch, num_streams=1):
            inputs = padded(batch, mini_batch, pad_id=pad_id)
            found = run({name: inputs[name] for name in executor.input_names})
            rows |= dict(zip(mini_batch.numbers.tolist(), _of_each(found, mini_batch.seqlens), strict=True))
    except Exception as error:
        raise ModelError(f"the compiled model fails: {one_line(error)}") from error
    return [rows[number] for number in range(batch.num_seqs)]


def _of_each(found: NDArray[np.float32], seqlens: NDArray[np.int32]) -> _RowsOfEach:
    if found.ndim == 2:
        return [row[None].copy() for row in found]
    return [rows[:seqlen].copy() for rows, seqlen in zip(found, seqlens, strict=True)]
