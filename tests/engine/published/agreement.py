"""Compares an engine's rows with a reading: in a batch, and each sequence alone."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from engine.types import PROMPT_TOKEN, Batch, OutputKind
from tests.engine.cpu.engines import difference
from tests.engine.tiny_models import batch
from tests.parity.engines import load

TOLERANCE = 1e-5
SEQLENS = (5, 17, 1, 30, 9, 9)


def check(
    engine: str,
    folder: Path,
    texts: Sequence[Sequence[int]],
    expected: Tensor,
    *,
    kind: OutputKind = OutputKind.POOLED,
    prompt: int = 0,
) -> str:
    """expected: [B, D]. prompt: tokens of each text that a pooling may leave out. Returns the engine's first note."""
    loaded = load(engine, folder)
    numbers = list(range(len(texts)))
    for some in (numbers, *([number] for number in numbers)):
        loaded.submit(_batch([texts[number] for number in some], kind, prompt))
        _, results = loaded.collect()
        assert isinstance(results, dict), results
        assert difference(results[kind].values, expected[some].float().numpy()) <= TOLERANCE
    loaded.close()
    return loaded.info.notes[0]


def _batch(texts: Sequence[Sequence[int]], kind: OutputKind, prompt: int) -> Batch:
    types = [PROMPT_TOKEN if place < prompt else 0 for ids in texts for place in range(len(ids))]
    return dataclasses.replace(batch(texts, types if prompt else None), outputs=kind)
