"""bge-m3: pooled, token, sparse and multi-vector rows of a batch from one forward, each as FlagEmbedding makes it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from engine.transformers.engine import TransformersEngine, load
from engine.types import OutputKind, Rows
from tests.engine.cpu.engines import options
from tests.engine.engines import difference, results
from tests.engine.rows.sentence_models import save_words
from tests.engine.tiny_models import HIDDEN_SIZE, VOCAB_SIZE, arbitrary, batch, save

ALL = OutputKind.POOLED | OutputKind.TOKENS | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
SEQLENS = (7, 1, 30, 7, 60, 2)
UNUSED = {0, 1}  # what the tokenizer pads with, and what it does not know


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save("xlm-roberta", tmp_path_factory.mktemp("bge") / "model")
    save_words(path)
    torch.manual_seed(4)
    save_file({"weight": torch.randn(1, HIDDEN_SIZE), "bias": torch.randn(1)}, path / "sparse_linear.safetensors")
    save_file({"weight": torch.randn(16, HIDDEN_SIZE), "bias": torch.randn(16)}, path / "colbert_linear.safetensors")
    return path


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[TransformersEngine]:
    engine = load(name="m", reason="", options=options(folder, pooling="cls"))
    yield engine
    engine.close()


def reference(folder: Path, sequence: list[int]) -> dict[OutputKind, NDArray[np.float32]]:
    """Of one text; sparse weights by token id."""
    sparse, colbert = (load_file(folder / f"{name}_linear.safetensors") for name in ("sparse", "colbert"))
    with torch.inference_mode():
        rows = AutoModel.from_pretrained(folder)(torch.tensor([sequence])).last_hidden_state[0]
        vectors = torch.nn.functional.normalize(rows @ colbert["weight"].T + colbert["bias"], dim=-1)
        weights = torch.relu(rows @ sparse["weight"][0] + sparse["bias"])
    by_id = np.zeros(VOCAB_SIZE, np.float32)
    for token_id, weight in zip(sequence, weights.tolist(), strict=True):
        if token_id not in UNUSED:
            by_id[token_id] = max(by_id[token_id], weight)
    return {
        OutputKind.POOLED: rows[0].numpy(),
        OutputKind.TOKENS: rows.numpy(),
        OutputKind.SPARSE: by_id,
        OutputKind.MULTI_VECTOR: vectors.numpy(),
    }


def of_sequence(rows: Rows, number: int, kind: OutputKind) -> NDArray[np.float32]:
    found: NDArray[np.float32]
    if rows.offsets is None:
        found = rows.values[number]
        return found
    found = rows.values[rows.offsets[number] : rows.offsets[number + 1]]
    if kind is not OutputKind.SPARSE:
        return found
    by_id = np.zeros(VOCAB_SIZE, np.float32)
    by_id[found[:, 0].astype(np.int64)] = found[:, 1]
    return by_id


@pytest.mark.parametrize("outputs", [ALL, *ALL, OutputKind.POOLED | OutputKind.SPARSE], ids=str)
def test_each_row_is_that_of_the_model_alone(outputs: OutputKind, loaded: TransformersEngine, folder: Path) -> None:
    assert loaded.info.outputs == ALL
    sequences = [*arbitrary(SEQLENS), [5, 9, 5, 5, 1, 9, 7]]
    found = results(loaded, dataclasses.replace(batch(sequences), outputs=outputs))
    for number, sequence in enumerate(sequences):
        expected = reference(folder, sequence)
        for kind in outputs:
            assert difference(of_sequence(found[kind], number, kind), expected[kind]) <= 1e-5


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
def test_all_come_from_one_forward(loaded: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, batches = loaded._forward, []

    def counting(some: Any) -> torch.Tensor:
        batches.append(some)
        return forward(some)

    monkeypatch.setattr(loaded, "_forward", counting)
    results(loaded, dataclasses.replace(batch(arbitrary(SEQLENS)), outputs=ALL))
    assert len(batches) == 1
