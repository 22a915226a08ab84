"""Upstream's own classes behind `--tensorrt-llm-model-class stock`, as far as the stand-in has them."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.types import EngineError, OutputKind
from tests.engine.engines import difference
from tests.engine.folder_files import change, write
from tests.engine.tensorrt_llm.models import classifying, embedding
from tests.engine.tensorrt_llm.parity import TOLERANCE
from tests.engine.tensorrt_llm.stand_in import library, load, rows
from tests.engine.tiny_models import HIDDEN_SIZE, SCORING_SEQUENCES, Reference, WholeReference, arbitrary, batch

SEQLENS = (5, 17, 1, 30)
HALF = 5e-3  # upstream's BERT computes in float16, whatever it is told


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    with library():
        yield


def test_embeddings_of_qwen3(tmp_path: Path) -> None:
    model = embedding("qwen3", tmp_path / "m", "last")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    write(model.folder / "modules.json", listed)
    write(model.folder / "1_Pooling" / "config.json", {"pooling_mode": "lasttoken"})
    sequences = arbitrary(SEQLENS)
    expected = model.expected(sequences)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = rows(load(model.folder, tensorrt_llm_model_class="stock"), sequences)
    assert difference(found, expected) <= TOLERANCE
    ours = rows(load(model.folder), sequences)
    assert difference(ours / np.linalg.norm(ours, axis=1, keepdims=True), expected) <= TOLERANCE


def test_bert_classifies_pairs_by_their_types(tmp_path: Path) -> None:
    model = classifying("bert", tmp_path / "m")
    engine = load(model.folder, tensorrt_llm_model_class="stock")
    sequences = arbitrary(SEQLENS)
    assert difference(rows(engine, sequences), model.expected(sequences)) <= HALF

    types = np.concatenate([np.arange(length) >= length // 2 for length in SEQLENS]).astype(np.int32)
    some = dataclasses.replace(batch(sequences, types.tolist()), outputs=OutputKind.LOGITS)
    engine.submit(some)
    _, results = engine.collect()
    assert not isinstance(results, EngineError)
    reference, bounds = WholeReference(model.folder, SCORING_SEQUENCES), np.cumsum([0, *SEQLENS])
    expected = np.stack(
        [reference.scores(each, types[bounds[i] : bounds[i + 1]].tolist()) for i, each in enumerate(sequences)]
    )
    assert difference(results[OutputKind.LOGITS].values, expected) <= HALF
    assert difference(model.expected(sequences), expected) > 10 * HALF


def test_a_reward_model_of_qwen2(tmp_path: Path) -> None:
    """Its class is nobody's but upstream's; what it computes is written down here once more."""
    model = embedding("qwen2", tmp_path / "m", "last")
    file, numbers = model.folder / "model.safetensors", np.random.default_rng(3)
    shapes = {
        "0.weight": (HIDDEN_SIZE, HIDDEN_SIZE),
        "0.bias": (HIDDEN_SIZE,),
        "2.weight": (1, HIDDEN_SIZE),
        "2.bias": (1,),
    }
    score = {name: numbers.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    tensors = {f"model.{name}": tensor for name, tensor in load_file(file).items()}
    save_file(tensors | {f"score.{name}": each for name, each in score.items()}, file, metadata={"format": "pt"})
    sequences = arbitrary(SEQLENS)
    last = Reference(embedding("qwen2", tmp_path / "bare", "last").folder).pooled(sequences, "last")
    change(model.folder / "config.json", architectures=["Qwen2ForRewardModel"])

    engine = load(model.folder, tensorrt_llm_model_class="stock")

    inner = np.maximum(last @ score["0.weight"].T + score["0.bias"], 0)
    expected = inner @ score["2.weight"].T + score["2.bias"]
    assert difference(rows(engine, sequences), expected) <= TOLERANCE
