"""T5's encoder: sentence-t5, gtr-t5 and instructor, against a reading of the paper and of Mesh TensorFlow.

Read: Raffel et al., section 2.1 (layers); tensorflow/mesh, mesh_tensorflow/transformer/transformer_layers.py,
_relative_position_bucket; Shazeer, GLU Variants Improve Transformer (T5 1.1's MLP). config.json as in
sentence-transformers/sentence-t5-base.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code.decoder import rms
from tests.parity.repositories.own_code.forms import MEAN, Config, Form, Shapes, Weights

SIZE, HEADS, HEAD, WIDTH, LAYERS = 32, 4, 6, 40, 3
CONFIG: dict[str, Any] = published("sentence-t5-base, small")
GATED = {"feed_forward_proj": "gated-gelu", "relative_attention_max_distance": 20, "tie_word_embeddings": False}
BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
KINDS = {"t5": CONFIG, "t5, gated": CONFIG | GATED, "mt5": CONFIG | GATED | {"model_type": "mt5"}}


def shapes(config: Config) -> Shapes:
    found: Shapes = {"shared.weight": (config["vocab_size"], SIZE)}
    for layer in range(LAYERS):
        attention, mlp = f"encoder.block.{layer}.layer.0", f"encoder.block.{layer}.layer.1"
        found |= {f"{attention}.SelfAttention.{name}.weight": (HEADS * HEAD, SIZE) for name in "qkv"}
        found[f"{attention}.SelfAttention.o.weight"] = (SIZE, HEADS * HEAD)
        found |= {f"{name}.layer_norm.weight": (SIZE,) for name in (attention, mlp)}
        wide = ("wi",) if config["feed_forward_proj"] == "relu" else ("wi_0", "wi_1")
        found |= {f"{mlp}.DenseReluDense.{name}.weight": (WIDTH, SIZE) for name in wide}
        found[f"{mlp}.DenseReluDense.wo.weight"] = (SIZE, WIDTH)
    return found | {f"{BIAS}.weight": (8, HEADS), "encoder.final_layer_norm.weight": (SIZE,)}


def bucket(distance: int, farthest: int) -> int:
    """Of a key that is `distance` tokens after its query; the logarithm is float32's, as in the authors' code."""
    first, near, half = (4 if distance > 0 else 0), 2, 4
    if abs(distance) < near:
        return first + abs(distance)
    far = np.log(np.float32(abs(distance) / near)) / np.float32(math.log(farthest / near)) * np.float32(half - near)
    return first + min(half - 1, near + int(far))


def token_rows(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    """[S, D]"""
    farthest, places = config.get("relative_attention_max_distance", 128), range(len(ids))
    buckets = torch.tensor([[bucket(key - query, farthest) for key in places] for query in places])
    bias = weights[f"{BIAS}.weight"][buckets].permute(2, 0, 1)
    rows = weights["shared.weight"][ids]
    for layer in range(LAYERS):
        name = f"encoder.block.{layer}.layer.0"
        normed = rms(weights, f"{name}.layer_norm", rows, 1e-6)
        query, key, value = (
            (normed @ weights[f"{name}.SelfAttention.{each}.weight"].T).reshape(-1, HEADS, HEAD).transpose(0, 1)
            for each in "qkv"
        )
        seen = (query @ key.mT + bias).softmax(-1) @ value
        rows = rows + seen.transpose(0, 1).flatten(1) @ weights[f"{name}.SelfAttention.o.weight"].T
        rows = rows + mlp(weights, f"encoder.block.{layer}.layer.1", rows)
    return rms(weights, "encoder.final_layer_norm", rows, 1e-6)


def mlp(weights: Weights, name: str, rows: Tensor) -> Tensor:
    normed = rms(weights, f"{name}.layer_norm", rows, 1e-6)
    first = [key for key in weights if key.startswith(f"{name}.DenseReluDense.wi")]
    wide = {key.split(".")[-2]: normed @ weights[key].T for key in first}
    inner = wide["wi"].relu() if "wi" in wide else gelu(wide["wi_0"]) * wide["wi_1"]
    return inner @ weights[f"{name}.DenseReluDense.wo.weight"].T


def gelu(rows: Tensor) -> Tensor:
    """By tanh, as in T5 1.1."""
    return rows * (1 + (math.sqrt(2 / math.pi) * (rows + 0.044715 * rows**3)).tanh()) / 2


def mean(config: Config, weights: Weights, ids: list[int], *, first: int = 0) -> Tensor:
    return token_rows(config, weights, ids)[first:].mean(0)


FORMS = {
    kind: Form(
        config=config,
        shapes=shapes(config),
        tied={"encoder.embed_tokens.weight": "shared.weight"},
        row=mean,
        modules=MEAN,
    )
    for kind, config in KINDS.items()
}
