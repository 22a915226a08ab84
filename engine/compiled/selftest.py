"""Holds a freshly compiled model against transformers' own rows, before anything is answered with it."""

import numpy as np
from numpy.typing import NDArray

from engine.compiled.executor import Executor, Run
from engine.compiled.minibatch import cut, padded
from engine.compiled.pooling import Pooling
from engine.compiled.reference import Reference
from engine.failures import one_line
from engine.sample_ids import Sequences
from engine.types import Batch, ModelError, OutputKind

TokenRows = list[NDArray[np.float32]]  # [S, D] of each sequence

MIN_COSINE = 0.97  # of any int8 row to its float32 row

# largest difference over largest value: rounding alone; a leak between sequences is a hundred times that
_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}


def largest_difference(executor: Executor, reference: Reference, *, pad_id: int, dtype: str) -> float:
    """Relative to the largest value. Raises ModelError where it is more than rounding.

    The sequences are computed together and each alone, on one core and on all.
    """
    together, alone = _token_rows(executor, reference.sequences, pad_id=pad_id)
    expected = np.concatenate(reference.token_rows)
    rows = np.stack([np.concatenate(together), np.concatenate(alone)])
    difference = float(np.abs(rows - expected).max() / np.abs(expected).max())
    if difference > _TOLERANCE[dtype]:
        raise ModelError(f"the compiled model differs from transformers' by {difference:.1e} of the largest value")
    return difference


def cosines(executor: Executor, reference: Reference, *, pad_id: int, pooling: Pooling) -> tuple[float, float]:
    """The smallest and the median cosine of pooled rows to the reference's. Raises ModelError below MIN_COSINE.

    The sequences are computed as in `largest_difference`.
    """
    expected = _pooled(reference.token_rows, pooling)
    rows = np.stack([_pooled(rows, pooling) for rows in _token_rows(executor, reference.sequences, pad_id=pad_id)])
    lengths = np.linalg.norm(rows, axis=-1) * np.linalg.norm(expected, axis=-1)
    found = (rows * expected).sum(axis=-1) / lengths
    smallest, median = float(found.min()), float(np.median(found))
    if not smallest >= MIN_COSINE:
        raise ModelError(
            f"--quantization int8 costs this model too much: the cosine to float32 is as low as {smallest:.3f}, "
            f"and {MIN_COSINE} is asked for; serve it with --quantization none"
        )
    return smallest, median


def _pooled(token_rows: TokenRows, pooling: Pooling) -> NDArray[np.float32]:
    return np.concatenate([pooling(rows[None], np.array([len(rows)], np.int32)) for rows in token_rows])


def _token_rows(executor: Executor, sequences: Sequences, *, pad_id: int) -> tuple[TokenRows, TokenRows]:
    """Of each sequence, computed together on one core, and each alone on all. Raises ModelError."""
    alone = executor.wide or executor.streams[-1]
    rows = (
        _run(executor.streams[0], executor, sequences, pad_id=pad_id),
        [_run(alone, executor, [sequence], pad_id=pad_id)[0] for sequence in sequences],
    )
    if not all(np.isfinite(found).all() for found in (*rows[0], *rows[1])):
        raise ModelError("the compiled model gives rows that are not finite")
    return rows


def _run(run: Run, executor: Executor, sequences: Sequences, *, pad_id: int) -> TokenRows:
    """The token rows of each sequence, computed as one batch."""
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    batch = Batch("", OutputKind.TOKENS, np.concatenate(sequences), cu_seqlens)
    rows: dict[int, NDArray[np.float32]] = {}
    try:
        for mini_batch in cut(cu_seqlens, num_streams=1):
            inputs = padded(batch, mini_batch, pad_id=pad_id)
            token_rows = run({name: inputs[name] for name in executor.input_names})
            rows |= dict(zip(mini_batch.numbers.tolist(), _unpadded(token_rows, mini_batch.seqlens), strict=True))
    except Exception as error:
        raise ModelError(f"the compiled model fails: {one_line(error)}") from error
    return [rows[number] for number in range(len(sequences))]


def _unpadded(token_rows: NDArray[np.float32], seqlens: NDArray[np.int32]) -> list[NDArray[np.float32]]:
    return [rows[:seqlen].copy() for rows, seqlen in zip(token_rows, seqlens, strict=True)]
