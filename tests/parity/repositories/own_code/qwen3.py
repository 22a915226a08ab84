"""voyage-4-nano and pplx-embed: Qwen3 in which every token sees every other, and what their code does besides.

Read: voyageai/voyage-4-nano, modeling_qwen3_bidirectional.py; perplexity-ai/pplx-embed-v1-0.6b, modeling.py, and
st_quantize.py, which rounds rows (tests/server/requests/test_whole_numbers.py). The layers: Qwen3 Technical Report,
section 2 (norms of queries and keys, groups of heads), and transformers' modeling_qwen3.py.
"""

from typing import Any

import torch
from torch import Tensor

from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import reading
from tests.parity.repositories.own_code.decoder import rms
from tests.parity.repositories.own_code.forms import (
    FUSED,
    MEAN,
    NORMALIZED,
    OPENVINO,
    TRANSFORMERS,
    Config,
    Form,
    Shapes,
    Weights,
)

VOYAGE: dict[str, Any] = published("voyage-4-nano, small")
PPLX: dict[str, Any] = published("pplx-embed-v1-0.6b, small")
CONTEXT: dict[str, Any] = PPLX | {
    "auto_map": {"AutoConfig": "configuration.PPLXQwen3Config", "AutoModel": "modeling.PPLXQwen3ContextualModel"}
}
EPS, THETA = 1e-6, 10_000.0  # of transformers' Qwen3Config, where config.json is silent
SEPARATOR = "<|endoftext|>"
QUANTIZED = {**MEAN, "st_quantize.FlexibleQuantizer": ""}


def shapes(config: Config, *, prefix: str = "", has_head_norms: bool = True) -> Shapes:
    """Of the weights."""
    size, width, head = config["hidden_size"], config["intermediate_size"], head_size(config)
    queries, shared = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    found: Shapes = {f"{prefix}embed_tokens.weight": (config["vocab_size"], size), f"{prefix}norm.weight": (size,)}
    for number in range(config["num_hidden_layers"]):
        layer = f"{prefix}layers.{number}"
        found |= {f"{layer}.{name}_layernorm.weight": (size,) for name in ("input", "post_attention")}
        rows = {"q": (queries, size), "k": (shared, size), "v": (shared, size), "o": (size, queries)}
        found |= {f"{layer}.self_attn.{name}_proj.weight": shape for name, shape in rows.items()}
        if has_head_norms:
            found |= {f"{layer}.self_attn.{name}_norm.weight": (head,) for name in "qk"}
        mlp = {"gate": (width, size), "up": (width, size), "down": (size, width)}
        found |= {f"{layer}.mlp.{name}_proj.weight": shape for name, shape in mlp.items()}
    return found


def head_size(config: Config) -> int:
    """Numbers of a head, which may be more than its share of a row."""
    found: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return found


def token_rows(
    config: Config, weights: Weights, ids: list[int], *, prefix: str = "", is_causal: bool = False
) -> Tensor:
    """[S, D]"""
    eps = config.get("rms_norm_eps", EPS)
    rows = weights[f"{prefix}embed_tokens.weight"][ids]
    for number in range(config["num_hidden_layers"]):
        layer = f"{prefix}layers.{number}"
        normed = rms(weights, f"{layer}.input_layernorm", rows, eps)
        rows = rows + _attention(config, weights, f"{layer}.self_attn", normed, is_causal=is_causal)
        normed = rms(weights, f"{layer}.post_attention_layernorm", rows, eps)
        gate, up = (reading.linear(weights, f"{layer}.mlp.{name}_proj", normed) for name in ("gate", "up"))
        gate = reading.activated(config.get("hidden_act", "silu"), gate)
        rows = rows + reading.linear(weights, f"{layer}.mlp.down_proj", gate * up)
    return rms(weights, f"{prefix}norm", rows, eps)


def _attention(config: Config, weights: Weights, name: str, rows: Tensor, *, is_causal: bool) -> Tensor:
    num_heads, num_shared, head = config["num_attention_heads"], config["num_key_value_heads"], head_size(config)
    query, key, value = (reading.linear(weights, f"{name}.{part}_proj", rows) for part in "qkv")
    query, key = (
        _normed(config, weights, f"{name}.{part}_norm", each).flatten(1) for part, each in (("q", query), ("k", key))
    )
    speeds = reading.frequencies(config.get("rope_theta", THETA), head)
    query, key = reading.turned(query, num_heads, speeds), reading.turned(key, num_shared, speeds)
    key, value = (
        each.reshape(len(each), num_shared, head).repeat_interleave(num_heads // num_shared, dim=1).flatten(1)
        for each in (key, value)
    )
    hidden = torch.full((len(rows), len(rows)), -torch.inf, dtype=torch.float64).triu(1)
    bias = hidden[None] if is_causal else None
    return reading.linear(weights, f"{name}.o_proj", reading.attention(query, key, value, num_heads, bias))


def _normed(config: Config, weights: Weights, name: str, rows: Tensor) -> Tensor:
    """Each head of its own, where there is such a norm."""
    heads = rows.reshape(len(rows), -1, head_size(config))
    return rms(weights, name, heads, config.get("rms_norm_eps", EPS)) if f"{name}.weight" in weights else heads


def voyage(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    """The layer is for the rows of tokens, and the mean is of what it gives."""
    return reading.linear(weights, "linear", token_rows(config, weights, ids, prefix="model.")).mean(0)


def mean(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    """Before it is rounded."""
    return token_rows(config, weights, ids).mean(0)


_REFUSED: tuple[tuple[str, Any], ...] = (
    ("use_sliding_window", True),
    ("use_bidirectional_attention", False),
    ("attention_window", 4),
)
_ALL = (TRANSFORMERS, OPENVINO, FUSED)
FORMS = {
    "voyage-4-nano": Form(
        config=VOYAGE,
        shapes={**shapes(VOYAGE, prefix="model."), "linear.weight": (VOYAGE["num_labels"], VOYAGE["hidden_size"])},
        row=voyage,
        modules=NORMALIZED,
        engines=_ALL,
        is_fuzzed=True,
        refused=(*_REFUSED, ("num_labels", None), ("num_labels", 7.5)),
    ),
    "pplx-embed-v1-0.6b": Form(
        config=PPLX, shapes=shapes(PPLX), row=mean, modules=QUANTIZED, engines=_ALL, refused=_REFUSED, is_fuzzed=True
    ),
    "pplx-embed-context-v1-0.6b": Form(
        config=CONTEXT,
        shapes=shapes(CONTEXT),
        row=mean,
        files={"tokenizer_config.json": {"sep_token": SEPARATOR}},
        tokens=(SEPARATOR,),
        engines=_ALL,
        is_fuzzed=True,
        refused=_REFUSED,
    ),
}
