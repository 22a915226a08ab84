"""LiquidAI/LFM2.5-Embedding-350M and LFM2.5-ColBERT-350M (modeling_lfm2_bidirectional.py in both).

The code patches transformers' LFM2: the mask leaves out padding alone, and a convolution begins K // 2 tokens before
its own and is cut to the text's length. Layers are those of Liquid AI's LFM2 Technical Report (arXiv 2511.23404).
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from tests.engine.folder_files import write
from tests.engine.model.detection.shapes import tokenizer
from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import decoder, reading
from tests.parity.repositories.own_code.forms import Config, Form, Shapes, Weights, save

CONFIG: dict[str, Any] = {
    **published("LFM2.5-Embedding-350M"),
    **{"hidden_size": 32, "block_dim": 32, "conv_dim": 32, "intermediate_size": 48, "block_ff_dim": 72},
    **{"block_multiple_of": 8, "num_attention_heads": 4, "num_heads": 4, "num_key_value_heads": 2},
    **{"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"]},
    **{"rope_theta": 100.0, "vocab_size": 120, "max_position_embeddings": 64},
}
_WIDER = {"conv_L_cache": 4, "conv_bias": True, "block_auto_adjust_ff_dim": False}
CLS = {"Transformer": "", "Pooling:cls": "1_Pooling"}


def shapes(config: Config, *, prefix: str = "") -> Shapes:
    """Of the weights."""
    size, bias = config["hidden_size"], config["conv_bias"]
    width = config["block_ff_dim"]
    if config["block_auto_adjust_ff_dim"]:
        multiple = config["block_multiple_of"]
        width = -(-(2 * width // 3) // multiple) * multiple
    head = size // config["num_attention_heads"]
    shared = config["num_key_value_heads"] * head
    found: Shapes = {"embed_tokens.weight": (config["vocab_size"], size)}
    for number, kind in enumerate(config["layer_types"]):
        layer = f"layers.{number}"
        found |= {f"{layer}.{name}_norm.weight": (size,) for name in ("operator", "ffn")}
        found |= {f"{layer}.feed_forward.{name}.weight": (width, size) for name in ("w1", "w3")}
        found[f"{layer}.feed_forward.w2.weight"] = (size, width)
        if kind == "conv":
            sizes = {"in_proj": (3 * size, size), "conv": (size, 1, config["conv_L_cache"]), "out_proj": (size, size)}
            found |= {f"{layer}.conv.{name}.weight": shape for name, shape in sizes.items()}
            found |= {f"{layer}.conv.{name}.bias": shape[:1] for name, shape in sizes.items() if bias}
        else:
            sizes = {"q": (size, size), "k": (shared, size), "v": (shared, size)}
            found |= {f"{layer}.self_attn.{name}_proj.weight": shape for name, shape in sizes.items()}
            found[f"{layer}.self_attn.out_proj.weight"] = (size, size)
            found |= {f"{layer}.self_attn.{name}_layernorm.weight": (head,) for name in "qk"}
    return {f"{prefix}{name}": shape for name, shape in (found | {"embedding_norm.weight": (size,)}).items()}


def token_rows(config: Config, weights: Weights, ids: list[int], *, num_hidden: int = 0) -> Tensor:
    """[S, D]. num_hidden: the last tokens, which no token attends to, while convolutions see them."""
    rows, eps = weights["embed_tokens.weight"][ids], config["norm_eps"]
    for number, kind in enumerate(config["layer_types"]):
        layer = f"layers.{number}"
        normed = decoder.rms(weights, f"{layer}.operator_norm", rows, eps)
        own = _convolved if kind == "conv" else _attended
        rows = rows + own(config, weights, layer, normed, num_hidden)
        normed = decoder.rms(weights, f"{layer}.ffn_norm", rows, eps)
        gate, up = (reading.linear(weights, f"{layer}.feed_forward.{name}", normed) for name in ("w1", "w3"))
        rows = rows + reading.linear(weights, f"{layer}.feed_forward.w2", gate * gate.sigmoid() * up)
    return decoder.rms(weights, "embedding_norm", rows, eps)


def _convolved(_: Config, weights: Weights, layer: str, rows: Tensor, __: int) -> Tensor:
    before, after, values = reading.linear(weights, f"{layer}.conv.in_proj", rows).chunk(3, dim=-1)
    kernel = weights[f"{layer}.conv.conv.weight"]
    found = functional.conv1d(
        (before * values).T[None],
        kernel,
        weights.get(f"{layer}.conv.conv.bias"),
        padding=kernel.shape[-1] // 2,
        groups=len(kernel),
    )
    return reading.linear(weights, f"{layer}.conv.out_proj", after * found[0, :, : len(rows)].T)


def _attended(config: Config, weights: Weights, layer: str, rows: Tensor, num_hidden: int) -> Tensor:
    num_heads, num_shared = config["num_attention_heads"], config["num_key_value_heads"]
    query, key, value = (reading.linear(weights, f"{layer}.self_attn.{name}_proj", rows) for name in "qkv")
    speeds = reading.frequencies(config["rope_theta"], query.shape[1] // num_heads)
    query, key = (
        reading.turned(_normed(weights, f"{layer}.self_attn.{name}_layernorm", each, count, config), count, speeds)
        for name, each, count in (("q", query, num_heads), ("k", key, num_shared))
    )
    key, value = (
        each.reshape(len(each), num_shared, -1).repeat_interleave(num_heads // num_shared, dim=1).flatten(1)
        for each in (key, value)
    )
    bias = torch.zeros(num_heads, len(rows), len(rows), dtype=rows.dtype)
    bias[:, :, len(rows) - num_hidden :] = -torch.inf
    return reading.linear(weights, f"{layer}.self_attn.out_proj", reading.attention(query, key, value, num_heads, bias))


def _normed(weights: Weights, name: str, rows: Tensor, num_heads: int, config: Config) -> Tensor:
    return decoder.rms(weights, name, rows.reshape(len(rows), num_heads, -1), config["norm_eps"]).flatten(1)


def save_colbert(folder: Path, config: Config, weights: Weights) -> Path:
    """As PyLate does, with the layer for each token of `weights`."""
    own = {name: tensor for name, tensor in weights.items() if name != "linear.weight"}
    save(folder, config, own, modules={"Transformer": "", "pylate.models.Dense.Dense": "1_Dense"})
    tokenizer(folder)
    given, size = weights["linear.weight"].shape[::-1]
    dense = {"in_features": given, "out_features": size, "bias": False}
    write(folder / "1_Dense" / "config.json", dense | {"activation_function": "torch.nn.modules.linear.Identity"})
    save_file({"linear.weight": weights["linear.weight"].float()}, folder / "1_Dense" / "model.safetensors")
    write(folder / "config_sentence_transformers.json", {"model_type": "ColBERT", "attend_to_expansion_tokens": False})
    return folder


def first(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    """[D]"""
    return token_rows(config, weights, ids)[0]


FORMS = {
    "LFM2.5-Embedding-350M": Form(
        config=CONFIG,
        shapes=shapes(CONFIG),
        row=first,
        modules=CLS,
        refused=(("use_pos_enc", False), ("block_use_swiglu", False), ("conv_window", 3)),
    ),
    "LFM2.5 with taps and biases": Form(config=CONFIG | _WIDER, shapes=shapes(CONFIG | _WIDER), row=first, modules=CLS),
}
