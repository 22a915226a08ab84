"""JinaBERT v2 in its published forms, against a reading of its code.

Read: jinaai/jina-bert-implementation and jinaai/jina-bert-v2-qk-post-norm, modeling_bert.py (a copy of the first is in
veya2ztn/sci-bert-finetune, models/jinabert); huggingface/text-embeddings-inference, backends/candle/src/models/jina.rs
and jina_code.rs; for the slopes ofirpress/attention_with_linear_biases. config.json as in jinaai/jina-embeddings-v2-*.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.model import model_folder
from engine.types import EXPANSION_TOKEN, ModelError, OutputKind
from tests.engine.folder_files import write
from tests.engine.model.detection.shapes import tokenizer
from tests.engine.published import reading
from tests.engine.published.folders import Weights, arbitrary, save, sequences

V, D, F, N, LAYERS = 90, 24, 40, 6, 2  # 6 heads: not a power of two, as the base model's 12
EPS = 1e-12
_CODE = "jinaai/jina-bert-implementation--"
_QK_CODE = "jinaai/jina-bert-v2-qk-post-norm--"
CONFIG: dict[str, Any] = {
    "_name_or_path": "jinaai/jina-bert-implementation",
    "model_max_length": 8192,
    "architectures": ["JinaBertForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "auto_map": {
        "AutoConfig": f"{_CODE}configuration_bert.JinaBertConfig",
        "AutoModelForMaskedLM": f"{_CODE}modeling_bert.JinaBertForMaskedLM",
        "AutoModel": f"{_CODE}modeling_bert.JinaBertModel",
        "AutoModelForSequenceClassification": f"{_CODE}modeling_bert.JinaBertForSequenceClassification",
    },
    "attn_implementation": None,
    "classifier_dropout": None,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": D,
    "initializer_range": 0.02,
    "intermediate_size": F,
    "layer_norm_eps": EPS,
    "max_position_embeddings": 64,
    "model_type": "bert",
    "num_attention_heads": N,
    "num_hidden_layers": LAYERS,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "torch_dtype": "float32",
    "transformers_version": "4.26.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": V,
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
}
QK_CONFIG = {**CONFIG, "auto_map": {key: code.replace(_CODE, _QK_CODE) for key, code in CONFIG["auto_map"].items()}}


def weights(prefix: str = "", *, is_qk: bool = False, others: dict[str, tuple[int, ...]] | None = None) -> Weights:
    shapes: dict[str, tuple[int, ...]] = {}

    def add(name: str, *shape: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    add("embeddings.word_embeddings", V, D, bias=False)
    add("embeddings.token_type_embeddings", 2, D, bias=False)
    add("embeddings.LayerNorm", D)
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            add(f"{layer}.attention.self.{name}", D, D)
        add(f"{layer}.attention.output.dense", D, D)
        norms = ["attention.output.LayerNorm"]
        if is_qk:
            norms += ["attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2"]
            add(f"{layer}.mlp.up_gated_layer", 2 * F, D, bias=False)
            add(f"{layer}.mlp.down_layer", D, F)
        else:
            norms.append("mlp.layernorm")
            add(f"{layer}.mlp.gated_layers", 2 * F, D, bias=False)
            add(f"{layer}.mlp.wo", D, F)
        for norm in norms:
            add(f"{layer}.{norm}", D)
    add("pooler.dense", D, D)
    return arbitrary({f"{prefix}{name}": shape for name, shape in shapes.items()} | (others or {}))


def slopes(num_heads: int) -> list[float]:
    """get_slopes of the ALiBi paper's code."""

    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(num_heads).is_integer():
        return of_power(num_heads)
    closest = 2 ** math.floor(math.log2(num_heads))
    return of_power(closest) + slopes(2 * closest)[0::2][: num_heads - closest]


def token_rows(named: Weights, ids: list[int], *, is_qk: bool = False, num_hidden: int = 0) -> Tensor:
    """The reading. Nothing attends to the last `num_hidden` tokens."""
    w = {name.removeprefix("bert."): tensor for name, tensor in named.items()}
    rows = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    rows = reading.norm(w, "embeddings.LayerNorm", rows, EPS)
    position = torch.arange(len(ids), dtype=torch.float64)
    distance = (position[:, None] - position).abs()
    bias = -torch.tensor(slopes(N), dtype=torch.float64)[:, None, None] * distance
    bias[:, :, len(ids) - num_hidden :] = -math.inf
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            reading.linear(w, f"{layer}.attention.self.{name}", rows) for name in ("query", "key", "value")
        )
        if is_qk:
            query = reading.norm(w, f"{layer}.attention.self.layer_norm_q", query, EPS)
            key = reading.norm(w, f"{layer}.attention.self.layer_norm_k", key, EPS)
        found = reading.linear(w, f"{layer}.attention.output.dense", reading.attention(query, key, value, N, bias))
        found = reading.norm(w, f"{layer}.attention.output.LayerNorm", found + rows, EPS)
        if is_qk:
            rows = reading.norm(w, f"{layer}.layer_norm_1", rows + found, EPS)
            both = reading.linear(w, f"{layer}.mlp.up_gated_layer", rows)
            mlp = reading.linear(w, f"{layer}.mlp.down_layer", both[:, :F] * reading.gelu(both[:, F:]))
            rows = reading.norm(w, f"{layer}.layer_norm_2", rows + mlp, EPS)
        else:
            both = reading.linear(w, f"{layer}.mlp.gated_layers", found)
            mlp = reading.linear(w, f"{layer}.mlp.wo", reading.gelu(both[:, :F]) * both[:, F:])
            rows = reading.norm(w, f"{layer}.mlp.layernorm", mlp + found, EPS)
    return rows


@pytest.mark.parametrize("engine", [reading.TRANSFORMERS, pytest.param(reading.OPENVINO, marks=pytest.mark.full)])
@pytest.mark.parametrize("is_qk", [False, True])
def test_embeddings_are_those_of_the_code(is_qk: bool, engine: str, tmp_path: Path) -> None:
    named = weights(is_qk=is_qk)
    folder = save(
        tmp_path, QK_CONFIG if is_qk else CONFIG, named, modules={"Transformer": "", "Pooling:mean": "1_Pooling"}
    )
    for one in reading.together_and_alone(sequences(V)):
        found, note = reading.computed(engine, folder, one)
        expected = [token_rows(named, ids, is_qk=is_qk).mean(0) for ids in reading.ids_of(one)]
        assert reading.difference(found, expected) < 1e-5
        assert engine != reading.TRANSFORMERS or note.startswith("packed")


@pytest.mark.parametrize("engine", [reading.TRANSFORMERS, pytest.param(reading.OPENVINO, marks=pytest.mark.full)])
def test_scores_of_the_rerankers_are_those_of_the_code(engine: str, tmp_path: Path) -> None:
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    config = {**CONFIG, **labels, "architectures": ["JinaBertForSequenceClassification"]}
    named = weights("bert.", others={"classifier.weight": (1, D), "classifier.bias": (1,)})
    folder = save(tmp_path, config, named)

    def score(ids: list[int]) -> Tensor:
        pooled = torch.tanh(reading.linear(named, "bert.pooler.dense", token_rows(named, ids)[0]))
        return reading.linear(named, "classifier", pooled)

    for one in reading.together_and_alone(sequences(V), OutputKind.LOGITS):
        found, _ = reading.computed(engine, folder, one)
        assert reading.difference(found, [score(ids) for ids in reading.ids_of(one)]) < 1e-5


def test_vectors_of_the_colbert_are_those_of_the_code(tmp_path: Path) -> None:
    """jina-colbert-v1-en. Other tokens do not attend to the mask tokens with which queries are filled up."""
    named = weights("bert.", others={"linear.weight": (12, D)})
    folder = save(tmp_path, {**CONFIG, "architectures": ["HF_ColBERT"]}, named)
    tokenizer(folder)
    write(folder / "artifact.metadata", {"query_maxlen": 32, "dim": 12, "attend_to_mask_tokens": False})
    ids, num_hidden = sequences(V, (9,))[0], 4
    one = reading.together_and_alone([ids], OutputKind.MULTI_VECTOR)[0]
    types = np.array([0] * (len(ids) - num_hidden) + [EXPANSION_TOKEN] * num_hidden, np.int32)
    found, _ = reading.computed(reading.TRANSFORMERS, folder, dataclasses.replace(one, token_type_ids=types))
    vectors = reading.linear(named, "linear", token_rows(named, ids, num_hidden=num_hidden))
    assert reading.difference(found, list(vectors / vectors.norm(dim=1, keepdim=True))) < 1e-5


@pytest.mark.parametrize(
    ("key", "value"),
    [("position_embedding_type", "absolute"), ("feed_forward_type", "original"), ("alibi_scaling", 2)],
)
def test_keys_that_would_change_rows_are_refused_by_name(key: str, value: object, tmp_path: Path) -> None:
    folder = save(tmp_path, {**CONFIG, key: value}, weights())
    with pytest.raises(ModelError, match=key):
        model_folder.read(folder)
