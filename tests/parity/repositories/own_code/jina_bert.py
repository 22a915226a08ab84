"""JinaBERT v2 in its published forms, against a reading of its code.

Read: jinaai/jina-bert-implementation and jinaai/jina-bert-v2-qk-post-norm, modeling_bert.py (a copy of the first is in
veya2ztn/sci-bert-finetune, models/jinabert); huggingface/text-embeddings-inference, backends/candle/src/models/jina.rs
and jina_code.rs; for the slopes ofirpress/attention_with_linear_biases. config.json as in jinaai/jina-embeddings-v2-*.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.types import OutputKind
from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import reading
from tests.parity.repositories.own_code.forms import MEAN, Config, Form, Shapes, Weights

_CODE = "jinaai/jina-bert-implementation--"
_QK_CODE = "jinaai/jina-bert-v2-qk-post-norm--"
CONFIG: dict[str, Any] = published("jina-embeddings-v2-base-en, small")
QK_CONFIG = {**CONFIG, "auto_map": {key: code.replace(_CODE, _QK_CODE) for key, code in CONFIG["auto_map"].items()}}


def shapes(config: Config, prefix: str = "", *, is_qk: bool = False) -> Shapes:
    v, d, f = (config[key] for key in ("vocab_size", "hidden_size", "intermediate_size"))
    found: Shapes = {}

    def add(name: str, *shape: int, bias: bool = True) -> None:
        found[f"{prefix}{name}.weight"] = shape
        if bias:
            found[f"{prefix}{name}.bias"] = shape[:1]

    add("embeddings.word_embeddings", v, d, bias=False)
    add("embeddings.token_type_embeddings", 2, d, bias=False)
    add("embeddings.LayerNorm", d)
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            add(f"{layer}.attention.self.{name}", d, d)
        add(f"{layer}.attention.output.dense", d, d)
        norms = ["attention.output.LayerNorm"]
        if is_qk:
            norms += ["attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2"]
            add(f"{layer}.mlp.up_gated_layer", 2 * f, d, bias=False)
            add(f"{layer}.mlp.down_layer", d, f)
        else:
            norms.append("mlp.layernorm")
            add(f"{layer}.mlp.gated_layers", 2 * f, d, bias=False)
            add(f"{layer}.mlp.wo", d, f)
        for norm in norms:
            add(f"{layer}.{norm}", d)
    add("pooler.dense", d, d)
    return found


def slopes(num_heads: int) -> list[float]:
    """get_slopes of the ALiBi paper's code."""

    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(num_heads).is_integer():
        return of_power(num_heads)
    closest = 2 ** math.floor(math.log2(num_heads))
    return of_power(closest) + slopes(2 * closest)[0::2][: num_heads - closest]


def token_rows(config: Config, named: Weights, ids: list[int], *, num_hidden: int = 0) -> Tensor:
    """The reading. Nothing attends to the last `num_hidden` tokens."""
    w = {name.removeprefix("bert."): tensor for name, tensor in named.items()}
    norm, num_heads = partial(reading.norm, eps=config.get("layer_norm_eps", 1e-12)), config["num_attention_heads"]
    act, f = {"geglu": "gelu", "reglu": "relu"}[config["feed_forward_type"]], config["intermediate_size"]
    rows = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    rows = norm(w, "embeddings.LayerNorm", rows)
    position = torch.arange(len(ids), dtype=torch.float64)
    distance = (position[:, None] - position).abs()
    bias = -torch.tensor(slopes(num_heads), dtype=torch.float64)[:, None, None] * distance
    bias[:, :, len(ids) - num_hidden :] = -math.inf
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            reading.linear(w, f"{layer}.attention.self.{name}", rows) for name in ("query", "key", "value")
        )
        is_qk = f"{layer}.attention.self.layer_norm_q.weight" in w
        if is_qk:
            query = norm(w, f"{layer}.attention.self.layer_norm_q", query)
            key = norm(w, f"{layer}.attention.self.layer_norm_k", key)
        found = reading.attention(query, key, value, num_heads, bias)
        found = reading.linear(w, f"{layer}.attention.output.dense", found)
        found = norm(w, f"{layer}.attention.output.LayerNorm", found + rows)
        if is_qk:
            rows = norm(w, f"{layer}.layer_norm_1", rows + found)
            both = reading.linear(w, f"{layer}.mlp.up_gated_layer", rows)
            mlp = reading.linear(w, f"{layer}.mlp.down_layer", both[:, :f] * reading.activated(act, both[:, f:]))
            rows = norm(w, f"{layer}.layer_norm_2", rows + mlp)
        else:
            both = reading.linear(w, f"{layer}.mlp.gated_layers", found)
            mlp = reading.linear(w, f"{layer}.mlp.wo", reading.activated(act, both[:, :f]) * both[:, f:])
            rows = norm(w, f"{layer}.mlp.layernorm", mlp + found)
    return rows


def mean(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    return token_rows(config, weights, ids).mean(0)


def score(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    pooled = torch.tanh(reading.linear(weights, "bert.pooler.dense", token_rows(config, weights, ids)[0]))
    return reading.linear(weights, "classifier", pooled)


_LABELS = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
_HEAD: Shapes = {"classifier.weight": (1, CONFIG["hidden_size"]), "classifier.bias": (1,)}
FORMS = {
    "jina-embeddings-v2": Form(
        config=CONFIG,
        shapes=shapes(CONFIG),
        row=mean,
        modules=MEAN,
        refused=(("position_embedding_type", "absolute"), ("feed_forward_type", "original"), ("alibi_scaling", 2)),
        is_fuzzed=True,
    ),
    "jina-embeddings-v2-base-code": Form(config=QK_CONFIG, shapes=shapes(CONFIG, is_qk=True), row=mean, modules=MEAN),
    "jina-reranker-v1": Form(
        config={**CONFIG, **_LABELS, "architectures": ["JinaBertForSequenceClassification"]},
        shapes=shapes(CONFIG, "bert.") | _HEAD,
        row=score,
        output=OutputKind.LOGITS,
    ),
}
