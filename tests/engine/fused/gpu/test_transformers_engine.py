"""The transformers engine's rows on a GPU, against those on the CPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.transformers import engine
from engine.transformers.engine import TransformersEngine
from engine.types import OutputKind
from tests.engine.engines import load_options
from tests.engine.tiny_models import FAMILIES, arbitrary, batch, save

pytestmark = pytest.mark.gpu


def load(folder: Path, **others: Any) -> TransformersEngine:
    return engine.load(name="m", reason="asked", options=load_options(folder, **{"num_threads": 3, **others}))


def unit_rows(loaded: TransformersEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    loaded.submit(batch(sequences))
    _, results = loaded.collect()
    assert isinstance(results, dict), results
    rows = results[OutputKind.POOLED].values
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


@pytest.mark.parametrize(("dtype", "least"), [("auto", 0.9999), ("float16", 0.99999), ("float32", 0.999999)])
def test_minilm_gives_the_rows_of_the_cpu(dtype: str, least: float, minilm_folder: Path) -> None:
    sequences = [np.random.default_rng(length).integers(1000, 30_000, length).tolist() for length in (1, 9, 64, 256, 9)]
    cpu, gpu = load(minilm_folder), load(minilm_folder, device="cuda:0", dtype=dtype)
    cosines = (unit_rows(cpu, sequences) * unit_rows(gpu, sequences)).sum(axis=1)
    cpu.close()
    gpu.close()
    assert gpu.info.device == "cuda:0"
    assert gpu.info.notes[0].startswith("packed")
    assert cosines.min() >= least


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.99999), ("auto", 0.99)])  # random weights exaggerate
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_rows_of_the_cpu(family: str, dtype: str, least: float, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences = arbitrary((5, 17, 1, 9, 40))
    cpu, gpu = load(folder), load(folder, device="cuda:0", dtype=dtype)
    cosines = (unit_rows(cpu, sequences) * unit_rows(gpu, sequences)).sum(axis=1)
    cpu.close()
    gpu.close()
    assert cosines.min() >= least
    assert gpu.info.notes[0].split(":")[0] == cpu.info.notes[0].split(":")[0]  # packed or padded
