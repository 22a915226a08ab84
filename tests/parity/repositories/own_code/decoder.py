"""A reading of Llama's and Mistral's layers, every token seeing every other, by the names of their weights.

Read: meta-llama/llama-models, models/llama3/model.py (layers, apply_scaling). Touvron et al., Llama 2, section 2.2.
"""

import math

from torch import Tensor

from tests.parity.repositories.own_code import reading
from tests.parity.repositories.own_code.forms import Config, Shapes, Weights


def shapes(config: Config, *, prefix: str = "") -> Shapes:
    """Of the weights."""
    size, width = config["hidden_size"], config["intermediate_size"]
    head = size // config["num_attention_heads"]
    rows = {"q": size, "k": config["num_key_value_heads"] * head, "v": config["num_key_value_heads"] * head}
    found: Shapes = {f"{prefix}embed_tokens.weight": (config["vocab_size"], size)}
    for number in range(config["num_hidden_layers"]):
        layer = f"{prefix}layers.{number}"
        found |= {f"{layer}.{name}_layernorm.weight": (size,) for name in ("input", "post_attention")}
        found |= {f"{layer}.self_attn.{name}_proj.weight": (rows[name], size) for name in "qkv"}
        found[f"{layer}.self_attn.o_proj.weight"] = (size, size)
        found |= {f"{layer}.mlp.{name}_proj.weight": (width, size) for name in ("gate", "up")}
        found[f"{layer}.mlp.down_proj.weight"] = (size, width)
    return {**found, f"{prefix}norm.weight": (size,)}


def token_rows(config: Config, weights: Weights, ids: list[int], *, prefix: str = "") -> Tensor:
    """[S, D]"""
    eps = config["rms_norm_eps"]
    rows = weights[f"{prefix}embed_tokens.weight"][ids]
    for number in range(config["num_hidden_layers"]):
        layer = f"{prefix}layers.{number}"
        rows = rows + _attention(weights, layer, config, rms(weights, f"{layer}.input_layernorm", rows, eps))
        normed = rms(weights, f"{layer}.post_attention_layernorm", rows, eps)
        gate, up = (reading.linear(weights, f"{layer}.mlp.{name}_proj", normed) for name in ("gate", "up"))
        rows = rows + reading.linear(weights, f"{layer}.mlp.down_proj", gate * gate.sigmoid() * up)
    return rms(weights, f"{prefix}norm", rows, eps)


def rms(weights: Weights, name: str, rows: Tensor, eps: float) -> Tensor:
    """Divided by the root of the mean square, then scaled."""
    return rows / ((rows**2).mean(-1, keepdim=True) + eps).sqrt() * weights[f"{name}.weight"]


def _attention(weights: Weights, layer: str, config: Config, rows: Tensor) -> Tensor:
    num_heads, num_shared = config["num_attention_heads"], config["num_key_value_heads"]
    query, key, value = (reading.linear(weights, f"{layer}.self_attn.{name}_proj", rows) for name in "qkv")
    speeds = _speeds(config, query.shape[1] // num_heads)
    query, key = reading.turned(query, num_heads, speeds), reading.turned(key, num_shared, speeds)
    key, value = (
        each.reshape(len(each), num_shared, -1).repeat_interleave(num_heads // num_shared, dim=1).flatten(1)
        for each in (key, value)
    )
    return reading.linear(weights, f"{layer}.self_attn.o_proj", reading.attention(query, key, value, num_heads))


def _speeds(config: Config, head_size: int) -> Tensor:
    """Angles of one position. With Llama 3's scaling slow ones are divided, and those between by a share."""
    speeds = reading.frequencies(config["rope_theta"], head_size)
    given = config.get("rope_scaling")
    if not given:
        return speeds
    turns = given["original_max_position_embeddings"] * speeds / (2 * math.pi)
    share = (turns - given["low_freq_factor"]) / (given["high_freq_factor"] - given["low_freq_factor"])
    share = share.clamp(0, 1)
    scaled: Tensor = share * speeds + (1 - share) * speeds / given["factor"]
    return scaled


def mean(config: Config, weights: Weights, ids: list[int], *, prefix: str = "", first: int = 0) -> Tensor:
    """[D], of the rows from `first` on."""
    return token_rows(config, weights, ids, prefix=prefix)[first:].mean(0)
