"""Does a freshly loaded engine give each sequence the row that is its own? Asked of it before it serves.

Whether the rows are those of the model is for the tests of each architecture; here a device, a driver or a kernel that
goes wrong is noticed.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from engine.failures import not_finite
from engine.model.model_folder import ModelFolder
from engine.selftest.sample_ids import Sequences, arbitrary
from engine.types import (
    Batch,
    DeviceTrouble,
    Engine,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    OutputKind,
    Results,
    main_output,
)

_SEQLENS = (5, 17, 1, 5, 40, 9)  # tokens; equal lengths are there on purpose, and more than one block of queries
# largest difference over largest value: rounding alone; a leak between sequences is far above
_TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2, "fp8": 0.2, "nvfp4": 0.3}


def check(engine: Engine, folder: ModelFolder, *, dtype: str) -> None:
    """Raises ModelError where rows are not finite, or not the same alone and together. dtype: a key of _TOLERANCE."""
    name = engine.info.engine
    sequences = arbitrary(folder, _SEQLENS[: engine.limits.max_num_seqs])
    together = rows_of(engine, sequences)
    alone = np.concatenate([rows_of(engine, [sequence]) for sequence in sequences])
    if not (np.isfinite(together).all() and np.isfinite(alone).all()):
        raise not_finite(name, dtype)
    difference = float(np.abs(together - alone).max() / np.abs(alone).max())
    if not difference <= _TOLERANCE[dtype]:
        raise ModelError(
            f"the {name} engine gives sequences other rows together than alone, by {difference:.1e}; "
            f"--engine transformers may serve the model"
        )


def rows_of(engine: Engine, sequences: Sequences) -> NDArray[np.float32]:
    """Rows [B, D] of what the engine is mainly for, in as many batches as the limits ask for.

    Raises ModelError where the engine fails.
    """
    return np.concatenate([_rows(engine, part) for part in batches(engine.limits, sequences)])


def answered(engine: Engine, sequences: Sequences, outputs: OutputKind | None = None) -> Results | EngineError:
    """One batch through the engine; `outputs` None = what it is mainly for."""
    outputs = main_output(engine.info.outputs) if outputs is None else outputs
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    engine.submit(Batch(engine.info.name, outputs, np.concatenate(sequences), cu_seqlens))
    _, results = engine.collect()
    return results


def cannot_run(engine: str, error: EngineError) -> ModelError:
    """What its first batches failed of; auto does not look for another engine where it is the device's."""
    text = f"the {engine} engine can't run the model: {error}"
    if error.kind is EngineErrorKind.FATAL:
        return DeviceTrouble(f"{text}; the GPU is lost to this process; --engine transformers may fare better")
    if error.kind is EngineErrorKind.OUT_OF_MEMORY:
        return DeviceTrouble(f"{text}; free some memory there, or lower --max-batch-tokens or --max-input-length")
    return ModelError(f"{text}; --engine transformers may")


def batches(limits: EngineLimits, sequences: Sequences) -> Iterator[Sequences]:
    """As many at a time as the limits allow, in their order."""
    batch: Sequences = []
    for sequence in sequences:
        num_tokens = sum(map(len, batch)) + len(sequence)
        if batch and (num_tokens > limits.max_num_tokens or len(batch) == limits.max_num_seqs):
            yield batch
            batch = []
        batch.append(sequence)
    yield batch


def _rows(engine: Engine, sequences: Sequences) -> NDArray[np.float32]:
    results = answered(engine, sequences)
    if isinstance(results, EngineError):
        raise cannot_run(engine.info.engine, results)
    return results[main_output(engine.info.outputs)].values
