"""Checks that a freshly loaded engine gives a sequence the same row alone as in a batch with others.

This finds a faulty device, driver or kernel. Whether the rows are right for the model is for each architecture's tests.

It also finds out whether sequences may share the rows of what they begin with alike: not where tokens see later ones.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from engine.model.model_folder import ModelFolder
from engine.selftest.comparison import agreement, batch_of, comparable, first_of, is_near, joined, not_finite
from engine.selftest.sample_ids import NUM_VICTIMS, Sequences, Trial, beginning_alike, trial
from engine.types import (
    DeviceTrouble,
    Engine,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    OutputKind,
    Results,
    Rows,
    RowsDiffer,
    compute,
    main_output,
)


def check(engine: Engine, folder: ModelFolder, *, dtype: str) -> None:
    """Raises ModelError if rows are not finite, or not the same alone and together. dtype: a key of TOLERANCE."""
    tried = trial(folder, kind=engine.info.device.partition(":")[0])
    for kind in main_output(engine.info.outputs) | (engine.info.outputs & ~OutputKind.TOKENS):
        _check(engine, tried, kind, dtype=dtype)


def _check(engine: Engine, tried: Trial, kind: OutputKind, *, dtype: str) -> None:
    sequences = [*tried.sequences, *tried.special][: engine.limits.max_num_seqs]
    found = results_of(engine, sequences, kind)[kind]
    alone = joined([results_of(engine, [sequence], kind) for sequence in sequences])[kind]
    if not (np.isfinite(found.values).all() and np.isfinite(alone.values).all()):
        raise not_finite(engine.info.engine, dtype)
    _check_near(engine, kind, found, alone, dtype=dtype, longest=max(map(len, sequences)))
    if not tried.neighbours:
        return
    victims = sequences[:NUM_VICTIMS]
    together = [results_of(engine, [*victims, *neighbours], kind)[kind] for neighbours in tried.neighbours]
    # Compared at once: of so few rows as one batch has here no mean can be taken off.
    beside = joined([{kind: first_of(rows, len(victims))} for rows in together])[kind]
    expected = joined([{kind: first_of(alone, len(victims))}] * len(together))[kind]
    _check_near(engine, kind, beside, expected, dtype=dtype, longest=max(map(len, victims)))


def _check_near(engine: Engine, kind: OutputKind, found: Rows, alone: Rows, *, dtype: str, longest: int) -> None:
    near = agreement(*comparable(kind, found, alone), dtype=dtype)
    if not is_near(near, dtype=dtype):
        raise RowsDiffer(
            f"the {engine.info.engine} engine's rows depend on the batch: beside those of a sequence alone "
            f"{near.in_words}; --engine transformers may serve the model",
            longest,
        )


def difference_by_sharing(
    engine: Engine, folder: ModelFolder, sequences: Sequences, kind: OutputKind, *, dtype: str
) -> str:
    """How rows differ where what sequences begin with alike is computed once, in words, or why that is not known; "" =
    they are the same.

    The engine does as `Batch.shared` says. Raises DeviceTrouble where the GPU is lost. dtype: a key of TOLERANCE.
    """
    limits = engine.limits  # each sequence becomes three, together not three times as long
    room = dataclasses.replace(limits, max_num_tokens=limits.max_num_tokens // 3, max_num_seqs=limits.max_num_seqs // 3)
    fitting = [one for one in sequences if len(one) <= room.max_num_tokens] if room.max_num_seqs else []
    tried = [alike for part in batches(room, fitting) if (alike := beginning_alike(folder, part)) is not None]
    if not tried:
        return "no batch could have several that do"
    once: list[Results] = []
    whole: list[Results] = []
    for alike in tried:
        for found, shared in ((once, alike.shared), (whole, None)):
            results = compute(engine, dataclasses.replace(alike, model=engine.info.name, outputs=kind, shared=shared))
            if isinstance(results, EngineError):
                if results.kind is EngineErrorKind.FATAL:
                    raise cannot_run(engine.info.engine, results)
                return str(results)
            found.append(results)
    near = agreement(*comparable(kind, joined(once)[kind], joined(whole)[kind]), dtype=dtype)
    return "" if is_near(near, dtype=dtype) else near.in_words


def results_of(engine: Engine, sequences: Sequences, outputs: OutputKind) -> Results:
    """Rows of all sequences, computed in as many batches as the engine's limits require. Raises ModelError if it
    fails."""
    parts = []
    for part in batches(engine.limits, sequences):
        results = answered(engine, part, outputs)
        if isinstance(results, EngineError):
            raise cannot_run(engine.info.engine, results)
        parts.append(results)
    return joined(parts)


def answered(engine: Engine, sequences: Sequences, outputs: OutputKind | None = None) -> Results | EngineError:
    """The engine's answer to one batch. `outputs` None = its main output."""
    outputs = main_output(engine.info.outputs) if outputs is None else outputs
    return compute(engine, batch_of(sequences, outputs, model=engine.info.name))


def cannot_run(engine: str, error: EngineError) -> ModelError:
    """The error for an engine whose first batches fail. If the device is at fault, `auto` tries no other engine."""
    text = f"the {engine} engine can't run the model: {error}"
    if error.kind is EngineErrorKind.FATAL:
        return DeviceTrouble(f"{text}; the GPU is lost to this process; --engine transformers may fare better")
    if error.kind is EngineErrorKind.OUT_OF_MEMORY:
        return DeviceTrouble(f"{text}; free some memory there, or lower --max-batch-tokens or --max-input-length")
    return ModelError(f"{text}; --engine transformers may")


def batches(limits: EngineLimits, sequences: Sequences) -> Iterator[Sequences]:
    """The sequences in order, as many at a time as fit a batch."""
    batch: Sequences = []
    for sequence in sequences:
        num_tokens = sum(map(len, batch)) + len(sequence)
        if batch and (num_tokens > limits.max_num_tokens or len(batch) == limits.max_num_seqs):
            yield batch
            batch = []
        batch.append(sequence)
    yield batch
