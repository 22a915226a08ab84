"""Architectures of many kinds: batches through the engine equal transformers' own rows, one sequence at a time."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.transformers import engine
from engine.transformers.engine import TransformersEngine
from engine.types import Batch, OutputKind
from tests.engine.load_options import load_options
from tests.engine.tiny_models import FAMILIES, HIDDEN_SIZE, PADDED, VOCAB_SIZE, Reference, arbitrary, batch, save

SEQLENS = (5, 17, 1, 30, 9, 9, 13)  # more in all than a sequence may have


def load(folder: Path, *, pooling: str = "mean") -> TransformersEngine:
    options = load_options(folder, pooling=pooling, max_num_tokens=256, max_num_seqs=16)
    return engine.load(name="m", reason="asked", options=options)


def compute(loaded: TransformersEngine, *batches: Batch) -> list[NDArray[np.float32]]:
    """The rows of these batches, computed one after the other; the engine is then closed."""
    rows = []
    for one in batches:
        loaded.submit(one)
        _, results = loaded.collect()
        assert isinstance(results, dict), results
        rows.append(results[OutputKind.POOLED].values)
    loaded.close()
    return rows


def difference(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest, relative to the largest value where that is above 1."""
    assert rows.dtype == np.float32
    assert rows.shape == expected.shape
    return float(np.abs(rows - expected).max() / max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_equals_one_sequence_at_a_time(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences = arbitrary(SEQLENS)
    loaded = load(folder)
    assert loaded.info.notes[0].startswith("padded" if family in PADDED else "packed"), loaded.info.notes
    assert loaded.info.is_padded == (family in PADDED)
    (rows,) = compute(loaded, batch(sequences))
    assert difference(rows, Reference(folder).pooled(sequences, "mean")) <= 1e-5


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", ["bert", "qwen3", "mpnet"])
def test_each_pooling(family: str, pooling: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences = arbitrary(SEQLENS)
    (rows,) = compute(load(folder, pooling=pooling), batch(sequences))
    assert difference(rows, Reference(folder).pooled(sequences, pooling)) <= 1e-5


@pytest.mark.parametrize("family", ["bert", "qwen3", "gemma3_text, bidirectional", "mpnet"])
def test_a_row_does_not_depend_on_its_neighbours(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences = arbitrary(SEQLENS)
    rows, turned, *alone = compute(
        load(folder), batch(sequences), batch(sequences[::-1]), *(batch([sequence]) for sequence in sequences)
    )
    assert difference(turned[::-1], rows) <= 1e-6
    assert difference(np.concatenate(alone), rows) <= 1e-6


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "mpnet"])
def test_a_padding_token_that_a_text_spells_out(family: str, tmp_path: Path) -> None:
    """`<pad>` in a text becomes the padding id, which RoBERTa and its kin leave out when they count positions."""
    folder = save(family, tmp_path / "model")
    sequences = [[5, 1, 6], [7, 8, 1, 1, 9], [1, 10], [11, 12, 13, 14]]
    (rows,) = compute(load(folder, pooling="last"), batch(sequences))
    assert difference(rows, Reference(folder).pooled(sequences, "last")) <= 1e-5


def test_token_types_are_used_where_the_model_has_them(tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    sequences = arbitrary([6, 4, 6])
    types = [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    none, zeros, some = compute(load(folder), batch(sequences), batch(sequences, [0] * 16), batch(sequences, types))
    assert difference(zeros, none) == 0
    assert difference(some[1], none[1]) <= 1e-6
    assert difference(some[[0, 2]], none[[0, 2]]) > 0.01


def test_what_is_said_of_a_model(tmp_path: Path) -> None:
    loaded = load(save("roberta", tmp_path / "model"), pooling="cls")
    loaded.close()
    info, limits = loaded.info, loaded.limits
    assert (info.dimensions, info.vocab_size, info.max_seqlen) == (HIDDEN_SIZE, VOCAB_SIZE, 62)
    assert (info.architecture, info.pooling, info.normalize) == ("roberta", "cls", False)
    assert (info.engine, info.dtype, info.device) == ("transformers", "float32", "cpu")
    assert (limits.max_num_tokens, limits.max_num_seqs, limits.max_seqlen) == (256, 16, 62)
    assert (limits.streams, limits.depth) == (1, 2)
