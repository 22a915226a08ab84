"""Compares the rows that an engine gives with those that it should give. All self-tests use it.

Each engine decides for itself which batches to run, how much rows may differ, and what to do if they differ more.
"""

import numpy as np
from numpy.typing import NDArray

from engine.selftest.sample_ids import Sequences
from engine.types import Batch, ModelError, OutputKind

# Largest difference over largest value, by dtype. Rounding stays below; a leak between sequences is far above.
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2, "fp8": 0.2, "nvfp4": 0.3}


def batch_of(
    sequences: Sequences,
    outputs: OutputKind = OutputKind.POOLED,
    *,
    model: str = "",
    token_type_ids: NDArray[np.int32] | None = None,
) -> Batch:
    """All sequences in one batch. token_type_ids: int32 [T]."""
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    return Batch(model, outputs, np.concatenate(sequences), cu_seqlens, token_type_ids)


def largest_difference(
    found: NDArray[np.float32], expected: NDArray[np.float32], *, scale: float | None = None
) -> float:
    """The largest difference of two float32 arrays, divided by `scale` (None = the largest expected value).

    Infinity if the shapes differ, NaN if a value is NaN. So write `if not difference <= tolerance`.
    """
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / (np.abs(expected).max() if scale is None else scale))


def not_finite(engine: str, dtype: str) -> ModelError:
    """The error for a model whose rows are NaN or infinite. It says what to try instead."""
    if dtype == "float16":
        instead = "--dtype bfloat16 or float32 may serve it" if engine != "fused" else "--dtype bfloat16 may serve it"
    elif (engine, dtype) == ("transformers", "float32"):
        instead = "its weights may be damaged, and no engine would do better"
    else:
        instead = "--engine transformers --dtype float32 --quantization none may serve it"
    return ModelError(f"the model gives rows that are not finite; {instead}")
