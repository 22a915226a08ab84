"""Compiles a converted model and compares its rows with the original's before it serves: chooses the dtype, and refuses
wrong rows. On the machine that converted it, and again on one that gets it from there. Imports no torch.

Shapes: S tokens of a sequence, D numbers a row; where a sequence has one row, S is 1.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.cpu.converted import Converted, Reference, RowsOfEach
from engine.cpu.minibatch import MiniBatch, cut, padded
from engine.cpu.offer import CompileOptions
from engine.cpu.openvino import Executor, Run
from engine.cpu.outputs import Makers, PaddedPooling
from engine.cpu.shared_prefixes import UNIQUE
from engine.machine.failures import one_line
from engine.rows.with_numpy import Pooling
from engine.selftest.comparison import agreement, batch_of, is_near
from engine.selftest.fidelity import Fidelity, fidelity
from engine.selftest.sample_ids import Sequences
from engine.types import Batch, ModelError, OutputKind, RowsDiffer
from wire.dataclass_json import from_json
from wire.parts import EXPANSION_TOKEN

_MIN_INT8_COSINE = 0.97  # of any row to its float32 row, without the mean row
_DTYPES = ("float32", "bfloat16", "float16")
_NUM_STREAMS = 2  # that compute at the same time; each keeps memory for the longest that it has computed
_LONGEST_ALIKE = 32  # tokens of a sequence that begins as another one does
_STEP = 8  # of 33 texts: four short ones and the longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The results of the self-test, kept with the compiled model."""

    dimensions: int  # numbers in a row of the compiled model
    pad_id: int  # token id of padding; -1 = no token
    dtype: str  # one of _DTYPES
    difference: float | None  # from the original's rows, relative to the largest value; None if quantized
    computed_by: str  # whose rows the original's are
    fidelity: Fidelity | None  # of int8 rows; of bfloat16 rows where auto has tried them; None = not measured
    num_products: int  # matrix products in int8; 0 if not quantized
    left_out: str = ""  # what the self-test did not try
    least_wide: int | None = None  # see engine.cpu.all_cores, measured with so many threads; None = it was not
    num_threads: int = 0
    shares_prefixes: bool = False  # whether it may compute once what sequences begin with alike

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> "Facts":
        """Read it from JSON. Raises ProtocolError or ValueError if the values are wrong."""
        facts = from_json(cls, values)
        counts = (facts.num_products, facts.num_threads, facts.least_wide or 0)
        if facts.pad_id < -1 or facts.dimensions < 1 or min(counts) < 0:
            raise ValueError("an id or a count is not one")
        if facts.dtype not in _DTYPES:
            raise ValueError("a dtype is not one")
        differences = () if facts.difference is None else (facts.difference,)
        measured = (*differences, *(dataclasses.astuple(facts.fidelity) if facts.fidelity else ()))
        if not measured or not all(map(math.isfinite, measured)):
            raise ValueError("a measured number is not one")
        return facts

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the log and /info."""
        equality = f"the self-test's rows equal {self.computed_by} to {self.difference or 0:.0e} of the largest value"
        alike = "what texts of a batch begin with alike is computed once" if self.shares_prefixes else ""
        measured = equality if self.difference is not None else ""
        return tuple(filter(None, (measured, self._lower_bits, alike, self.left_out)))

    @property
    def _lower_bits(self) -> str:
        if self.fidelity is None:
            return ""
        found = self.fidelity.in_words
        if self.num_products:
            return f"int8 in {self.num_products} matrix products: {found}"
        if self.dtype == "bfloat16":
            return f"--dtype auto computes in bfloat16: {found}; --dtype float32 does not"
        return f"--dtype auto computes in float32, because bfloat16 is too far from it: {found}"


class Open(Protocol):
    """Compiles the converted model in a dtype. has_wide: see Executor."""

    def __call__(self, dtype: str, *, has_wide: bool = True) -> Executor: ...


def examine(
    open_in: Open, converted: Converted, compile_options: CompileOptions, *, makers: Makers, is_new: bool = True
) -> tuple[Executor, Facts]:
    """Run the self-test. Returns the executor that serves. Raises ModelError if the compiled model fails it.

    is_new: False of a model whose float32 form another machine has compared with transformers. Then only what serves is
    compiled and compared, and few texts both ways, which halves the time of the test.
    """
    found, difference = None, None

    def measured(executor: Executor) -> Fidelity:
        pooled = makers[OutputKind.POOLED]
        assert isinstance(pooled, PaddedPooling)
        return measure(executor, converted.of_texts, pad_id=converted.pad_id, pooling=pooled.pooling, each_alone=is_new)

    dtype = "float32" if compile_options.dtype == "auto" else compile_options.dtype
    differs = partial(check_difference, references=converted.references, pad_id=converted.pad_id, dtype=dtype)
    if compile_options.quantization != "none":
        executor = open_in(dtype)
        found = measured(executor)
        if not found.min_cosine >= _MIN_INT8_COSINE:
            raise ModelError(
                f"--quantization int8 costs this model too much: {found.in_words}, and a cosine of {_MIN_INT8_COSINE} "
                "is asked for; serve it with --quantization none"
            )
    elif compile_options.dtype == "auto":
        if is_new:  # memory holds one form, this one of half the size, as it will hardly serve
            difference = differs(open_in(dtype, has_wide=False))
        executor = open_in("bfloat16")
        found = measured(executor)
        if found.is_hardly_lower:
            dtype = "bfloat16"
        else:
            del executor
            executor = open_in(dtype)
            difference = differs(executor)
    else:
        executor = open_in(dtype)
        difference = differs(executor)
    facts = Facts(
        dimensions=converted.dimensions,
        pad_id=converted.pad_id,
        dtype=dtype,
        difference=difference,
        computed_by=converted.computed_by,
        fidelity=found,
        num_products=converted.num_products,
        left_out="; ".join(converted.notes),
        least_wide=executor.least_wide,
        num_threads=executor.num_threads,
        shares_prefixes=shares_prefixes(executor, converted, dtype=dtype),
    )
    return executor, facts


def shares_prefixes(executor: Executor, converted: Converted, *, dtype: str) -> bool:
    """Whether rows are the same where what sequences begin with alike is computed once: all rows of sequences that go
    on in different ways, behind prefixes of several lengths. Raises ModelError if the compiled model fails."""
    if UNIQUE not in executor.input_names:
        return False
    reference = (*converted.references, *converted.of_texts)[0]
    batch = _sharing(np.concatenate(reference.sequences), longest=max(map(len, reference.sequences)))
    names, pad_id = executor.input_names, converted.pad_id
    compute = partial(_compute, runs=executor.streams[:1], input_names=names, pad_id=pad_id)
    once, each = (np.concatenate(compute([tried])[0]) for tried in (batch, dataclasses.replace(batch, shared=None)))
    # what int8 rounds may be rounded up in one sum and down in another
    limits = "bfloat16" if converted.num_products else dtype
    return is_near(agreement(once, each, dtype=limits), dtype=limits)


def _sharing(token_ids: NDArray[np.int32], *, longest: int) -> Batch:
    """Two families of sequences of these ids: each sequence begins as the one before it and ends in its own way."""
    left, sequences, shared = np.resize(token_ids, 4 * _LONGEST_ALIKE), [], []
    for length in {min(longest, most) for most in (_LONGEST_ALIKE, _LONGEST_ALIKE // 8)}:
        sequence, left = left[:length], left[length:]
        sequences.append(sequence)
        shared.append(0)
        for num_shared in sorted({length - 1, length * 5 // 8, length // 8} - {0}, reverse=True):
            num_own = (length - num_shared + 1) // 2
            sequence, left = np.append(sequence[:num_shared], left[:num_own]), left[num_own:]
            sequences.append(sequence)
            shared.append(num_shared)
    return dataclasses.replace(batch_of(sequences), shared=np.array(shared, np.int32))


def check_difference(executor: Executor, references: Sequence[Reference], *, pad_id: int, dtype: str) -> float:
    """The largest difference: see RowAgreement. Raises ModelError if rounding does not explain it.

    The sequences of each reference are computed together on single streams, and each alone on all cores. Their rows are
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
    executor: Executor, references: Iterable[Reference], *, pad_id: int, pooling: Pooling, each_alone: bool = True
) -> Fidelity:
    """How near the pooled rows are to the references'; the least of them and of both ways to compute them, which are
    those of `check_difference`. each_alone: False = only some sequences are computed alone. The model must give token
    rows. Raises ModelError if it fails.
    """
    found = [
        fidelity(_pooled(rows, pooling), _pooled(each.rows, pooling))
        for each in references
        for rows in _rows(executor, each, pad_id=pad_id, each_alone=each_alone)
    ]
    return min(found, key=lambda each: each.min_cosine)


def num_hidden(sequence: NDArray[np.int32]) -> int:
    """Tokens at the end of a sequence that are hidden from the others. If the last 72 of 144 are hidden, ModernBERT's
    window of 64 to either side leaves the last token none that it can see.
    """
    return len(sequence) // 2


def _pooled(token_rows: RowsOfEach, pooling: Pooling) -> NDArray[np.float32]:
    return np.concatenate([pooling(rows[None], np.array([len(rows)], np.int32)) for rows in token_rows])


def _rows(
    executor: Executor, reference: Reference, *, pad_id: int, each_alone: bool = True
) -> tuple[RowsOfEach, RowsOfEach]:
    """Rows of all sequences, together on single streams, and of each, or every _STEPth, alone on all. Raises
    ModelError."""
    num_streams = min(_NUM_STREAMS, executor.num_long_streams or _NUM_STREAMS)
    streams, wide = executor.streams[:num_streams], executor.wide
    compute = partial(_compute, input_names=executor.input_names, pad_id=pad_id)
    batch = partial(_batch, hides_tokens=reference.hides_tokens, adapter=reference.adapter)
    together = compute([batch(reference.sequences)], streams)[0][: len(reference.rows)]
    alone = list(together)
    numbers = range(0, len(together), 1 if each_alone else _STEP)
    batches = [batch([reference.sequences[number]]) for number in numbers]
    for number, (rows,) in zip(numbers, compute(batches, [wide] if wide else streams), strict=True):
        alone[number] = rows
    if not all(np.isfinite(found).all() for found in (*together, *alone)):
        raise ModelError("the compiled model gives rows that are not finite")
    return together, alone


def _batch(sequences: Sequences, *, hides_tokens: bool, adapter: int) -> Batch:
    marks = None
    if hides_tokens:
        marks = np.zeros(sum(map(len, sequences)), np.uint8)
        for sequence, end in zip(sequences, np.cumsum([len(each) for each in sequences]), strict=True):
            marks[end - num_hidden(sequence) : end] = EXPANSION_TOKEN
    adapters = np.full(len(sequences), adapter, np.int32) if adapter else None
    return dataclasses.replace(batch_of(sequences, marks=marks), adapters=adapters)


def _compute(
    batches: Sequence[Batch], runs: Sequence[Run], *, input_names: frozenset[str], pad_id: int
) -> list[RowsOfEach]:
    """The rows of each sequence of each batch; the runs share the mini-batches. Raises ModelError if one fails."""
    free: SimpleQueue[Run] = SimpleQueue()
    for each in runs:
        free.put(each)

    def rows_of(part: tuple[int, MiniBatch]) -> RowsOfEach:
        run, (number, mini_batch) = free.get(), part
        try:
            found = run(padded(batches[number], mini_batch, input_names, pad_id=pad_id))
            return _of_each(found, mini_batch.seqlens)
        finally:
            free.put(run)

    rows: list[dict[int, NDArray[np.float32]]] = [{} for _ in batches]
    try:
        parts = [
            (number, mini_batch)
            for number, batch in enumerate(batches)
            for mini_batch in cut(batch, num_streams=1, max_seqlen=int(np.diff(batch.cu_seqlens).max()))
        ]
        with ThreadPoolExecutor(len(runs)) as pool:
            for (number, mini_batch), found in zip(parts, pool.map(rows_of, parts), strict=True):
                rows[number] |= dict(zip(mini_batch.numbers.tolist(), found, strict=True))
    except Exception as error:
        raise ModelError(f"the compiled model fails: {one_line(error)}") from error
    return [[of_batch[number] for number in sorted(of_batch)] for of_batch in rows]


def _of_each(found: NDArray[np.float32], seqlens: NDArray[np.int32]) -> RowsOfEach:
    if found.ndim == 2:
        return [row[None].copy() for row in found]
    return [rows[:seqlen].copy() for rows, seqlen in zip(found, seqlens, strict=True)]
