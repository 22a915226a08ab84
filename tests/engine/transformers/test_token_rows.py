"""Rows of single tokens from the transformers engine: the last hidden states, as transformers itself has them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from engine.transformers import engine
from engine.transformers.engine import TransformersEngine
from engine.types import OutputKind, Results
from tests.engine.load_options import load_options
from tests.engine.tiny_models import HIDDEN_SIZE, Reference, arbitrary, batch, save

SEQLENS = [7, 1, 30, 7, 60, 2]
BOTH = OutputKind.POOLED | OutputKind.TOKENS


def load(folder: Path, dtype: str = "float32") -> TransformersEngine:
    return engine.load(name="m", reason="asked", options=load_options(folder, dtype=dtype, pooling="mean"))


def compute(loaded: TransformersEngine, sequences: list[list[int]], outputs: OutputKind) -> Results:
    loaded.submit(dataclasses.replace(batch(sequences), outputs=outputs))
    _, results = loaded.collect()
    assert isinstance(results, dict), results
    assert set(results) == set(outputs)
    return results


@pytest.mark.holds("Every token gets its own row")
@pytest.mark.parametrize("outputs", [OutputKind.TOKENS, BOTH], ids=str)
@pytest.mark.parametrize("family", ["bert", "qwen3", "mpnet"])  # packed, packed and causal, padded
def test_each_token_has_its_last_hidden_state(family: str, outputs: OutputKind, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences = arbitrary(SEQLENS)
    loaded = load(folder)
    results = compute(loaded, sequences, outputs)
    loaded.close()

    rows, reference = results[OutputKind.TOKENS], Reference(folder)
    assert outputs in loaded.info.outputs
    assert rows.values.dtype == np.float32
    assert rows.values.shape == (sum(SEQLENS), HIDDEN_SIZE)
    assert rows.offsets is not None
    assert rows.offsets.tolist() == np.cumsum([0, *SEQLENS]).tolist()
    expected = np.concatenate([reference.token_rows(sequence) for sequence in sequences])
    assert np.abs(rows.values - expected).max() <= 1e-5 * np.abs(expected).max()
    if OutputKind.POOLED in outputs:
        pooled = reference.pooled(sequences, "mean")
        assert np.abs(results[OutputKind.POOLED].values - pooled).max() <= 1e-5 * np.abs(pooled).max()


def test_rows_are_float32_whatever_is_computed_in(tmp_path: Path) -> None:
    loaded = load(save("bert", tmp_path / "model"), dtype="bfloat16")
    rows = compute(loaded, arbitrary([3, 5]), BOTH)[OutputKind.TOKENS]
    loaded.close()
    assert rows.values.dtype == np.float32
    assert rows.values.shape == (8, HIDDEN_SIZE)
