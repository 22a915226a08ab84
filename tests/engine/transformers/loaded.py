"""Loads models into the transformers engine and asks it for rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.rows.with_torch import Pooling, RowModules
from engine.transformers import engine
from engine.transformers.engine import TransformersEngine
from engine.transformers.forward import Forward
from engine.transformers.heads import embeddings
from engine.types import EngineLimits, ModelInfo, OutputKind
from tests.engine import engines
from tests.engine.engines import load_options
from tests.engine.tiny_models import batch


def load(folder: Path, **others: Any) -> TransformersEngine:
    return engine.load(name="m", reason="asked", options=load_options(folder, **others))


def made(forward: Forward, *, streams: int = 1, device: str = "cpu") -> TransformersEngine:
    """An engine around any forward."""
    info = ModelInfo(
        name="m",
        engine="transformers",
        reason="asked",
        outputs=OutputKind.POOLED,
        dimensions=2,
        max_seqlen=8,
        vocab_size=10,
        pooling="cls",
        normalize=False,
        dtype="float32",
        device=device,
        architecture="",
    )
    limits = EngineLimits(max_num_tokens=64, max_num_seqs=8, max_seqlen=8, streams=streams, depth=streams + 1)
    return TransformersEngine(forward, embeddings(Pooling(("cls",), RowModules())), info=info, limits=limits)


def raw_rows(loaded: TransformersEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    return engines.rows(loaded, batch(sequences))


def rows(loaded: TransformersEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Scaled to length 1, as the model wants its rows handed out."""
    values = raw_rows(loaded, sequences)
    normalized: NDArray[np.float32] = values / np.linalg.norm(values, axis=1, keepdims=True)
    return normalized
