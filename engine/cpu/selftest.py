"""Compares a compiled model with the original's rows, before it serves: on the machine that converted it, and again
on one that gets it from there. Imports no torch.

Shapes: S tokens of a sequence, D numbers a row; where a sequence has one row, S is 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.cpu.minibatch import cut, padded
from engine.cpu.openvino import Executor, Run
from engine.machine.failures import one_line
from engine.rows.with_numpy import Pooling
from engine.selftest.comparison import agreement, batch_of, is_near
from engine.selftest.fidelity import Fidelity, fidelity
from engine.selftest.sample_ids import Sequences
from engine.types import EXPANSION_TOKEN, Batch, ModelError, RowsDiffer

_STEP = 8  # of 33 texts: four short ones and the longest

RowsOfEach = list[NDArray[np.float32]]  # [S, D] of each sequence


@dataclass(frozen=True, slots=True)
class Reference:
    """Sequences and the rows that the original gives for them, one sequence at a time."""

    sequences: Sequences  # int32 [S] each
    rows: RowsOfEach  # of the first ones; the others are there to stand beside them
    hides_tokens: bool = False  # whether the last half of each sequence is hidden from the other tokens

    @property
    def dimensions(self) -> int:
        """D."""
        return int(self.rows[0].shape[1])


def check_difference(executor: Executor, references: Sequence[Reference], *, pad_id: int, dtype: str) -> float:
    """The largest difference: see Agreement. Raises ModelError if rounding does not explain it.

    The sequences of each reference are computed together on one core, and each alone on all cores. Their rows are
    compared as one, since a few scores near zero say nothing of the size of others.
    """
    expected = np.concatenate([row for each in references for row in each.rows])
    differences = []
    for rows in zip(*(_rows(executor, each, pad_id=pad_id) for each in references), strict=True):
        found = agreement(np.concatenate([row for part in rows for row in part]), expected, dtype=dtype)
        if not is_near(found, dtype=dtype):
            longest = max(len(sequence) for each in references for sequence in each.sequences)
            raise RowsDiffer(f"the compiled model's rows are not the original's: {found.in_words}", longest)
        differences.append(found.difference)
    return max(differences)


def measure(
    executor: Executor, reference: Reference, *, pad_id: int, pooling: Pooling, each_alone: bool = True
) -> Fidelity:
    """How near the pooled rows are to the reference's; the lesser of both ways to compute them, which are those of
    `check_difference`. each_alone: False = only some sequences are computed alone. The model must give token rows.
    Raises ModelError if it fails.
    """
    expected = _pooled(reference.rows, pooling)
    both = (_pooled(rows, pooling) for rows in _rows(executor, reference, pad_id=pad_id, each_alone=each_alone))
    return min((fidelity(rows, expected) for rows in both), key=lambda found: found.min_cosine)


def num_hidden(sequence: NDArray[np.int32]) -> int:
    """Tokens at the end of a sequence that are hidden from the others. If the last 70 of 140 are hidden, ModernBERT's
    window of 64 to either side leaves the last token none that it can see.
    """
    return len(sequence) // 2


def _pooled(token_rows: RowsOfEach, pooling: Pooling) -> NDArray[np.float32]:
    return np.concatenate([pooling(rows[None], np.array([len(rows)], np.int32)) for rows in token_rows])


def _rows(
    executor: Executor, reference: Reference, *, pad_id: int, each_alone: bool = True
) -> tuple[RowsOfEach, RowsOfEach]:
    """Of each sequence, computed together on one core, and each alone on all, or every _STEPth. Raises ModelError."""
    wide = executor.wide or executor.streams[-1]
    batch = _batch(reference.sequences, hides_tokens=reference.hides_tokens)
    together = _run(executor.streams[0], executor, batch, pad_id=pad_id)[: len(reference.rows)]
    alone = list(together)
    for number in range(0, len(together), 1 if each_alone else _STEP):
        one = _batch([reference.sequences[number]], hides_tokens=reference.hides_tokens)
        alone[number] = _run(wide, executor, one, pad_id=pad_id)[0]
    if not all(np.isfinite(found).all() for found in (*together, *alone)):
        raise ModelError("the compiled model gives rows that are not finite")
    return together, alone


def _batch(sequences: Sequences, *, hides_tokens: bool) -> Batch:
    types = None
    if hides_tokens:
        types = np.zeros(sum(map(len, sequences)), np.int32)
        for sequence, end in zip(sequences, np.cumsum([len(each) for each in sequences]), strict=True):
            types[end - num_hidden(sequence) : end] = EXPANSION_TOKEN
    return batch_of(sequences, token_type_ids=types)


def _run(run: Run, executor: Executor, batch: Batch, *, pad_id: int) -> RowsOfEach:
    """The rows of each sequence, computed as one batch."""
    rows: dict[int, NDArray[np.float32]] = {}
    try:
        longest = int(np.diff(batch.cu_seqlens).max())
        for mini_batch in cut(batch, num_streams=1, max_seqlen=longest):
            inputs = padded(batch, mini_batch, pad_id=pad_id)
            found = run({name: inputs[name] for name in executor.input_names})
            rows |= dict(zip(mini_batch.numbers.tolist(), _of_each(found, mini_batch.seqlens), strict=True))
    except Exception as error:
        raise ModelError(f"the compiled model fails: {one_line(error)}") from error
    return [rows[number] for number in range(batch.num_seqs)]


def _of_each(found: NDArray[np.float32], seqlens: NDArray[np.int32]) -> RowsOfEach:
    if found.ndim == 2:
        return [row[None].copy() for row in found]
    return [rows[:seqlen].copy() for rows, seqlen in zip(found, seqlens, strict=True)]
