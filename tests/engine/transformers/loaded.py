"""Loads models into the transformers engine and asks it for rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.transformers import engine
from engine.transformers.engine import TransformersEngine
from tests.engine import engines
from tests.engine.engines import load_options
from tests.engine.tiny_models import batch


def load(folder: Path, **others: Any) -> TransformersEngine:
    return engine.load(name="m", reason="asked", options=load_options(folder, **others))


def raw_rows(loaded: TransformersEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    return engines.rows(loaded, batch(sequences))


def rows(loaded: TransformersEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Scaled to length 1, as the model wants its rows handed out."""
    values = raw_rows(loaded, sequences)
    normalized: NDArray[np.float32] = values / np.linalg.norm(values, axis=1, keepdims=True)
    return normalized
