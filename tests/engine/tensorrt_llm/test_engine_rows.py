"""Rows of our classes on the library's backbones, and of upstream's own, equal transformers', on the stand-in.

It computes decoders in float32, and BERT in float16, as the class asks for. There positions from 0, or those of a whole
packed row, are wrong by a hundred times that.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine.rows.with_numpy import position_ids
from engine.tensorrt_llm.models import in_files, positions
from engine.types import EngineError, ModelError, OutputKind
from tests.engine.engines import difference
from tests.engine.folder_files import change
from tests.engine.tensorrt_llm.header_models import write_chain
from tests.engine.tensorrt_llm.models import ENCODERS, FAMILIES, Model, answering, embedding, scoring, with_options
from tests.engine.tensorrt_llm.parity import SEQLENS, TOLERANCE, distance
from tests.engine.tensorrt_llm.stand_in import graph_runner, library, load, rows
from tests.engine.tiny_models import HIDDEN_SIZE, SCORING_SEQUENCES, Reference, WholeReference, arbitrary, batch
from tests.tiers import full_but

pytestmark = pytest.mark.usefixtures("installed")

HALF = 5e-3  # float16
PADDING = 1
FEW = (5, 17, 1, 30)


def is_right(family: str, model: Model) -> bool:
    if family in ENCODERS:
        return distance(with_options(model, dtype="float16")) <= HALF
    return distance(model) <= TOLERANCE


@pytest.mark.holds("TensorRT-LLM rows equal transformers' rows")
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("pooling", full_but(["last"], ["last", "mean", "cls"]))
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings(family: str, pooling: str, is_causal: bool, tmp_path: Path) -> None:
    direction: dict[str, Any] = {} if is_causal else {"is_causal": False}
    assert is_right(family, embedding(family, tmp_path / "m", pooling, **direction))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", full_but(["qwen3"], FAMILIES))
def test_weights_of_a_whole_model(family: str, is_tied: bool, tmp_path: Path) -> None:
    model = embedding(family, tmp_path / "m", "last", has_prefix=True, tie_word_embeddings=is_tied)
    assert is_right(family, model)


@pytest.mark.holds("TensorRT-LLM rows equal transformers' rows")
@pytest.mark.parametrize("has_prefix", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", ENCODERS)
def test_embeddings_of_encoders(family: str, pooling: str, has_prefix: bool, tmp_path: Path) -> None:
    assert is_right(family, embedding(family, tmp_path / "m", pooling, has_prefix=has_prefix))


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("family", full_but(["qwen2", "roberta"], [*FAMILIES, *ENCODERS]))
def test_scores(family: str, num_labels: int, tmp_path: Path) -> None:
    assert is_right(family, scoring(family, tmp_path / "m", num_labels=num_labels))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", full_but(["qwen3"], FAMILIES))
def test_answers(family: str, is_tied: bool, tmp_path: Path) -> None:
    assert is_right(family, answering(family, tmp_path / "m", tie_word_embeddings=is_tied))


def test_an_answer_of_yes_alone(tmp_path: Path) -> None:
    assert is_right("qwen3", answering("qwen3", tmp_path / "m", no_id=None))


def test_padding_at_the_end_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """As transformers' classifiers have it, which look for the last token that is not the padding token."""
    model = scoring("qwen2", tmp_path / "m")
    engine = load(model.folder, **model.options)
    sequences = [[5, 6, 0, 0], [7, 0], [9, 0, 9]]
    assert difference(rows(engine, sequences), model.expected([[5, 6], [7], [9, 0, 9]])) <= TOLERANCE
    assert np.isfinite(model.expected(sequences)).all()


@pytest.mark.parametrize("family", full_but(["qwen3"], FAMILIES))
def test_versions_with_attention_in_its_old_place(family: str, tmp_path: Path) -> None:
    with library("old_paths"):
        assert is_right(family, embedding(family, tmp_path / "m", "mean", is_causal=False))


@pytest.mark.holds("TensorRT-LLM rows equal transformers' rows")
def test_padding_tokens_that_a_text_spells_out(tmp_path: Path) -> None:
    """They have the padding's position, those after them count on without them, and none is left out of the scores."""
    model = scoring("xlm-roberta", tmp_path / "m")
    sequences = [[5, PADDING, 6, 7], [PADDING, PADDING, 8], [9, PADDING]]
    found = rows(load(model.folder, dtype="float16"), sequences)
    assert difference(found, model.expected(sequences)) <= HALF


def test_graphs_pad_batches_of_encoders(tmp_path: Path) -> None:
    model = embedding("xlm-roberta", tmp_path / "m", "mean")
    engine = load(model.folder, **model.options, dtype="float16", tensorrt_llm_cuda_graphs=True)
    graphs = graph_runner(engine)
    before = graphs.num_replays
    sequences = arbitrary((5, 17, 1))
    assert difference(rows(engine, sequences), model.expected(sequences)) <= HALF
    assert graphs.num_replays > before


def test_without_being_asked_it_computes_in_bfloat16(tmp_path: Path) -> None:
    engine = load(embedding("roberta", tmp_path / "m", "cls").folder, pooling="cls")
    assert engine.info.dtype == "bfloat16"


def test_positions_are_those_of_the_other_engines() -> None:
    sequences = [*arbitrary(SEQLENS), [PADDING, 5, PADDING, PADDING, 6], [PADDING]]
    packed = batch(sequences)
    places = torch.from_numpy(np.concatenate([np.arange(len(each), dtype=np.int32) for each in sequences]))
    found = positions(torch.from_numpy(packed.token_ids), places, PADDING)
    assert found.dtype == torch.int32
    assert found.tolist() == position_ids(packed, PADDING).tolist()


def test_a_module_that_upstream_did_not_have_ends_the_start() -> None:
    with pytest.raises(ModelError, match=r"has a module layers\.0\.self_attn\.q_norm in its BERT"):
        in_files("layers.0.self_attn.q_norm")


def test_upstreams_embeddings_of_qwen3(tmp_path: Path) -> None:
    model = embedding("qwen3", tmp_path / "m", "last")
    write_chain(model.folder)
    sequences = arbitrary(FEW)
    expected = model.expected(sequences)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = rows(load(model.folder, tensorrt_llm_model_class="stock"), sequences)
    assert difference(found, expected) <= TOLERANCE
    ours = rows(load(model.folder), sequences)
    assert difference(ours / np.linalg.norm(ours, axis=1, keepdims=True), expected) <= TOLERANCE


def test_upstreams_bert_classifies_pairs_by_their_types(tmp_path: Path) -> None:
    model = scoring("bert", tmp_path / "m")
    engine = load(model.folder, tensorrt_llm_model_class="stock")
    sequences = arbitrary(FEW)
    assert difference(rows(engine, sequences), model.expected(sequences)) <= HALF

    types = np.concatenate([np.arange(length) >= length // 2 for length in FEW]).astype(np.int32)
    some = dataclasses.replace(batch(sequences, types.tolist()), outputs=OutputKind.LOGITS)
    engine.submit(some)
    _, results = engine.collect()
    assert not isinstance(results, EngineError)
    reference, bounds = WholeReference(model.folder, SCORING_SEQUENCES), np.cumsum([0, *FEW])
    expected = np.stack(
        [reference.scores(each, types[bounds[i] : bounds[i + 1]].tolist()) for i, each in enumerate(sequences)]
    )
    assert difference(results[OutputKind.LOGITS].values, expected) <= HALF
    assert difference(model.expected(sequences), expected) > 10 * HALF


def test_upstreams_reward_model_of_qwen2(tmp_path: Path) -> None:
    """Its class is nobody's but upstream's; what it computes is written down here once more."""
    model = embedding("qwen2", tmp_path / "m", "last")
    file, numbers = model.folder / "model.safetensors", np.random.default_rng(3)
    size = HIDDEN_SIZE
    shapes = {"0.weight": (size, size), "0.bias": (size,), "2.weight": (1, size), "2.bias": (1,)}
    score = {name: numbers.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    tensors = {f"model.{name}": tensor for name, tensor in load_file(file).items()}
    save_file(tensors | {f"score.{name}": each for name, each in score.items()}, file, metadata={"format": "pt"})
    sequences = arbitrary(FEW)
    last = Reference(embedding("qwen2", tmp_path / "bare", "last").folder).pooled(sequences, "last")
    change(model.folder / "config.json", architectures=["Qwen2ForRewardModel"])

    engine = load(model.folder, tensorrt_llm_model_class="stock")

    inner = np.maximum(last @ score["0.weight"].T + score["0.bias"], 0)
    expected = inner @ score["2.weight"].T + score["2.bias"]
    assert difference(rows(engine, sequences), expected) <= TOLERANCE
