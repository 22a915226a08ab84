"""Which RoBERTa and XLM-RoBERTa models the engine takes, and what it says of those that it would get wrong."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoModel

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore
from engine.tensorrt_llm.planning.backbone import padding_idx_of
from engine.tensorrt_llm.planning.head import HeadKind, PlannedHead, head_of
from engine.tensorrt_llm.planning.plan import ModelFlags, plan
from engine.types import ModelError
from tests.engine import engines
from tests.engine.folder_files import change
from tests.engine.tiny_models import HIDDEN_SIZE, SCORING_SEQUENCES, save_whole

PLAIN = ModelFlags(dtype="auto", quantization="auto", is_stock=False)


def embedder(path: Path, **config: Any) -> ModelFolder:
    save_whole("xlm-roberta", path, AutoModel)
    change(path / "config.json", **config)
    return model_folder.read(path, pooling="mean")


def refused(folder: ModelFolder) -> str:
    message = engines.refusal(lambda: plan(folder, [], PLAIN))
    assert message.startswith("the tensorrt-llm engine ")
    assert "--engine fused" in message
    return message


def test_embeddings(tmp_path: Path) -> None:
    model_class = plan(embedder(tmp_path), [], PLAIN).model_class
    head = PlannedHead(kind=HeadKind.EMBED, pooling="mean", is_causal=False, num_outputs=HIDDEN_SIZE, padding_idx=1)
    assert model_class.model_kwargs == {"architectures": ["EmbedlineXlmRoberta"], "embedline": head.to_config()}
    assert model_class.pad_id is None
    assert PlannedHead.from_config(json.loads(json.dumps(head.to_config()))) == head


def test_scores(tmp_path: Path) -> None:
    folder = model_folder.read(save_whole("roberta", tmp_path, SCORING_SEQUENCES, num_labels=3))
    expected = PlannedHead(kind=HeadKind.SCORE, pooling="cls", is_causal=False, num_outputs=3, padding_idx=1)
    assert head_of(folder) == expected
    assert plan(folder, [], PLAIN).model_class.pad_id is None  # transformers attends to padding that a text spells out


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hidden_act": "gelu_new"}, "another hidden_act"),
        ({"position_embedding_type": "relative_key"}, "another position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pad_token_id": -1}, "pad_token_id"),
        ({"num_hidden_layers": 10**9}, "'encoder.layer.3.attention.self.query.weight'"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "no quantized layers"),
    ],
    ids=str,
)
def test_what_would_be_computed_otherwise(config: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = embedder(tmp_path)
    change(tmp_path / "config.json", **config)
    assert named in refused(folder)


def test_without_a_padding_id_there_are_no_positions() -> None:
    assert padding_idx_of({}, max_seqlen=510) == 1  # as in transformers' configuration
    with pytest.raises(ModelError, match=r"which config\.json lacks"):
        padding_idx_of({"pad_token_id": None}, max_seqlen=510)


def test_positions_end_where_the_table_does(tmp_path: Path) -> None:
    folder = embedder(tmp_path)
    assert folder.max_seqlen == 62
    message = refused(dataclasses.replace(folder, max_seqlen=63))
    assert "positions for 62 tokens" in message
    assert "--max-input-length 62" in message


def test_answers_are_for_others(tmp_path: Path) -> None:
    folder = dataclasses.replace(embedder(tmp_path), heads=(AnswerScore(yes_id=7, no_id=8),))
    assert "gives rows for texts, scores and labels" in refused(folder)


def test_a_classifier_without_a_layer_of_its_head_is_refused(tmp_path: Path) -> None:
    folder = model_folder.read(save_whole("roberta", tmp_path, SCORING_SEQUENCES, num_labels=3))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["classifier.dense.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert "'classifier.dense.bias'" in refused(folder)


def test_fp8_is_for_others(tmp_path: Path) -> None:
    flags = dataclasses.replace(PLAIN, quantization="fp8")
    with pytest.raises(ModelError, match="has no quantized layers for xlm-roberta, and --quantization fp8 asks"):
        plan(embedder(tmp_path), [], flags)
