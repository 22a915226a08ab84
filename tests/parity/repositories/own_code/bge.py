"""BGE's rerankers with a head for each layer, all layers computed and no tokens compressed.

Read: FlagOpen/FlagEmbedding, FlagEmbedding/inference/reranker/decoder_only: lightweight.py and layerwise.py for what is
asked of the code, models/gemma_model.py and models/modeling_minicpm_reranker.py. The first code takes the head of the
place that a layer has among those asked for, so the first where only the last layer is; the second takes the layer's
own. Gemma 2's layers are those of google/gemma_pytorch, gemma/model.py.
"""

import math
from typing import Any

import torch
from torch import Tensor

from engine.types import OutputKind
from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import decoder, reading
from tests.parity.repositories.own_code.forms import OPENVINO, TRANSFORMERS, Config, Form, Shapes, Weights

GEMMA2: dict[str, Any] = published("bge-reranker-v2.5-gemma2-lightweight, small")
MINICPM: dict[str, Any] = published("bge-reranker-v2-minicpm-layerwise, small")
_GEMMA_NORMS = ("pre_feedforward", "post_feedforward")


def _heads(config: Config, num_heads: int) -> Shapes:
    return {f"lm_head.{number}.linear_head.weight": (1, config["hidden_size"]) for number in range(num_heads)}


def _gemma_shapes() -> Shapes:
    size, head = GEMMA2["hidden_size"], GEMMA2["head_dim"]
    found = decoder.shapes(GEMMA2, prefix="model.")
    rows = {"q": GEMMA2["num_attention_heads"] * head, "k": GEMMA2["num_key_value_heads"] * head}
    for number in range(GEMMA2["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        found |= {f"{layer}.self_attn.{name}_proj.weight": (rows.get(name, rows["k"]), size) for name in "qkv"}
        found[f"{layer}.self_attn.o_proj.weight"] = (size, rows["q"])
        found |= {f"{layer}.{name}_layernorm.weight": (size,) for name in _GEMMA_NORMS}
    return {**found, **_heads(GEMMA2, GEMMA2["num_hidden_layers"] + 1 - GEMMA2["start_layer"])}


def cost_wise_score(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    """[1]"""
    rows = weights["model.embed_tokens.weight"][ids] * math.sqrt(config["hidden_size"])
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        attended = _gemma_attention(config, weights, layer, number, _norm(weights, f"{layer}.input", rows, config))
        rows = rows + _norm(weights, f"{layer}.post_attention", attended, config)
        normed = _norm(weights, f"{layer}.pre_feedforward", rows, config)
        gate, up = (reading.linear(weights, f"{layer}.mlp.{name}_proj", normed) for name in ("gate", "up"))
        down = reading.linear(weights, f"{layer}.mlp.down_proj", _gelu_tanh(gate) * up)
        rows = rows + _norm(weights, f"{layer}.post_feedforward", down, config)
    last = _rms(weights["model.norm.weight"], rows, config)[-1]
    cap = config["final_logit_softcapping"]
    score: Tensor = torch.tanh(weights["lm_head.0.linear_head.weight"] @ last / cap) * cap
    return score


def _norm(weights: Weights, name: str, rows: Tensor, config: Config) -> Tensor:
    return _rms(weights[f"{name}_layernorm.weight"], rows, config)


def _rms(weight: Tensor, rows: Tensor, config: Config) -> Tensor:
    unit: Tensor = rows / ((rows**2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt()
    return unit * (1 + weight)


def _gelu_tanh(rows: Tensor) -> Tensor:
    return 0.5 * rows * (1 + torch.tanh(math.sqrt(2 / math.pi) * (rows + 0.044715 * rows**3)))


def _gemma_attention(config: Config, weights: Weights, layer: str, number: int, rows: Tensor) -> Tensor:
    """Every second layer, from the first on, sees only so many tokens before each."""
    num_heads, num_shared, head = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    query, key, value = (reading.linear(weights, f"{layer}.self_attn.{name}_proj", rows) for name in "qkv")
    speeds = reading.frequencies(config["rope_theta"], head)
    query = reading.turned(query, num_heads, speeds).reshape(len(rows), num_heads, head)
    key = reading.turned(key, num_shared, speeds).reshape(len(rows), num_shared, head)
    key, value = (
        each.reshape(len(rows), num_shared, head).repeat_interleave(num_heads // num_shared, dim=1)
        for each in (key, value)
    )
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(config["query_pre_attn_scalar"])
    scores = torch.tanh(scores / config["attn_logit_softcapping"]) * config["attn_logit_softcapping"]
    back = torch.arange(len(rows))[:, None] - torch.arange(len(rows))
    is_seen = (back >= 0) & ((back < config["sliding_window"]) | (number % 2 == 1))
    weighted = scores.masked_fill(~is_seen, -math.inf).softmax(-1)
    found = torch.einsum("hqk,khd->qhd", weighted, value).flatten(1)
    return reading.linear(weights, f"{layer}.self_attn.o_proj", found)


def layerwise_score(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    """[1]"""
    eps, layers = config["rms_norm_eps"], config["num_hidden_layers"]
    step = config["scale_depth"] / math.sqrt(layers)
    rows = weights["model.embed_tokens.weight"][ids] * config["scale_emb"]
    for number in range(layers):
        layer = f"model.layers.{number}"
        normed = decoder.rms(weights, f"{layer}.input_layernorm", rows, eps)
        rows = rows + step * _minicpm_attention(config, weights, layer, normed)
        normed = decoder.rms(weights, f"{layer}.post_attention_layernorm", rows, eps)
        gate, up = (reading.linear(weights, f"{layer}.mlp.{name}_proj", normed) for name in ("gate", "up"))
        rows = rows + step * reading.linear(weights, f"{layer}.mlp.down_proj", gate * gate.sigmoid() * up)
    last = decoder.rms(weights, "model.norm", rows, eps)[-1]
    return weights[f"lm_head.{layers - config['start_layer']}.linear_head.weight"] @ last


def _minicpm_attention(config: Config, weights: Weights, layer: str, rows: Tensor) -> Tensor:
    num_heads = config["num_attention_heads"]
    query, key, value = (reading.linear(weights, f"{layer}.self_attn.{name}_proj", rows) for name in "qkv")
    speeds = reading.frequencies(config["rope_theta"], query.shape[1] // num_heads)
    query, key = (reading.turned(each, num_heads, speeds) for each in (query, key))
    hidden = torch.full((num_heads, len(rows), len(rows)), -math.inf, dtype=torch.float64).triu(1)
    found = reading.attention(query, key, value, num_heads, hidden)
    return reading.linear(weights, f"{layer}.self_attn.o_proj", found)


FORMS = {
    "bge-reranker-v2.5-gemma2-lightweight": Form(
        config=GEMMA2,
        shapes=_gemma_shapes(),
        row=cost_wise_score,
        output=OutputKind.LOGITS,
        engines=(TRANSFORMERS, OPENVINO),
        refused=(("layer_wise", False), ("layer_sep", 3), ("start_layer", 9), ("compress_ratio", 2)),
    ),
    "bge-reranker-v2-minicpm-layerwise": Form(
        config=MINICPM,
        shapes={
            **decoder.shapes(MINICPM, prefix="model."),
            **_heads(MINICPM, MINICPM["num_hidden_layers"] + 1 - MINICPM["start_layer"]),
        },
        row=layerwise_score,
        output=OutputKind.LOGITS,
        refused=(("head_type", "complex"), ("head_multi", False), ("rope_scaling", {"type": "linear", "factor": 2.0})),
    ),
}
