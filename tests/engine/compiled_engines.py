"""What the tests of the compiled engines share: loading one, and running batches through it."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compiled.engine import CompiledEngine
from engine.types import Batch, OutputKind, Results
from tests.engine.tiny_models import batch

ENGINES = ("openvino", "onnxruntime")


def options(folder: Path, **others: Any) -> dict[str, Any]:
    fixed = {"path": str(folder), "device": "cpu", "dtype": "auto", "pooling": None, "num_threads": 2}
    return {**fixed, "max_num_tokens": 4096, "max_num_seqs": 64, **others}


def load(name: str, folder: Path, **others: Any) -> CompiledEngine:
    module = importlib.import_module(f"engine.compiled.{name}")
    loaded: CompiledEngine = module.load(name="m", reason="asked", options=options(folder, **others))
    return loaded


def results(loaded: CompiledEngine, one: Batch) -> Results:
    """Of one batch, with nothing else in the engine."""
    ticket = loaded.submit(one)
    collected, found = loaded.collect()
    assert collected == ticket
    assert isinstance(found, dict), found
    return found


def pooled(loaded: CompiledEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    values = results(loaded, batch(sequences))[OutputKind.POOLED].values
    assert values.dtype == np.float32
    return values


def difference(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest, relative to the largest value where that is above 1."""
    assert rows.shape == expected.shape
    return float(np.abs(rows - expected).max() / max(1.0, np.abs(expected).max()))
