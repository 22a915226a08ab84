"""Alibaba's `new` architecture in its published forms, against a reading of its code.

Read: Alibaba-NLP/new-impl, modeling.py (NTKScalingRotaryEmbedding, NewAttention, NewGatedMLP, NewLayer, NewPooler) and
configuration.py; config.json and names of weights as in Alibaba-NLP/gte-multilingual-base, gte-base-en-v1.5 and
gte-multilingual-reranker-base, and Snowflake/snowflake-arctic-embed-m-v2.0.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.types import OutputKind
from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import reading
from tests.parity.repositories.own_code.forms import FUSED, OPENVINO, TRANSFORMERS, Config, Form, Shapes, Weights

POOLED_AND_NORMALIZED = {"Transformer": "", "Pooling:cls": "1_Pooling", "Normalize": "2_Normalize"}
CONFIG: dict[str, Any] = published("gte-multilingual-base, small")
ARCTIC = {
    "architectures": ["GteModel"],
    "auto_map": {
        "AutoConfig": "configuration_hf_alibaba_nlp_gte.GteConfig",
        "AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel",
    },
    "model_type": "gte",
    "matryoshka_dimensions": [256],
}
_ENGINES = (TRANSFORMERS, OPENVINO, FUSED)
OWN_CODE = {key: name.rpartition("--")[2] for key, name in CONFIG["auto_map"].items()}


def shapes(config: Config, prefix: str = "new.") -> Shapes:
    v, d, f = (config[key] for key in ("vocab_size", "hidden_size", "intermediate_size"))
    found: Shapes = {"embeddings.word_embeddings.weight": (v, d)}
    if config["type_vocab_size"]:
        found["embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], d)
    for name in ("weight", "bias"):
        found[f"embeddings.LayerNorm.{name}"] = (d,)
    for layer in range(config["num_hidden_layers"]):
        own = f"encoder.layer.{layer}"
        found |= {f"{own}.attention.qkv_proj.weight": (3 * d, d), f"{own}.attention.qkv_proj.bias": (3 * d,)}
        found |= {f"{own}.attention.o_proj.weight": (d, d), f"{own}.attention.o_proj.bias": (d,)}
        found |= {f"{own}.mlp.up_gate_proj.weight": (2 * f, d)}
        found |= {f"{own}.mlp.down_proj.weight": (d, f), f"{own}.mlp.down_proj.bias": (d,)}
        found |= {f"{own}.{norm}.{name}": (d,) for norm in ("attn_ln", "mlp_ln") for name in ("weight", "bias")}
    # of embeddings, a head for term weights, which is not served
    return {f"{prefix}{name}": shape for name, shape in found.items()} | {
        "classifier.weight": (1, d),
        "classifier.bias": (1,),
    }


def token_rows(config: Config, named: Weights, ids: list[int]) -> Tensor:
    """The reading."""
    w = {name.removeprefix("new."): tensor for name, tensor in named.items()}
    norm, num_heads = partial(reading.norm, eps=config.get("layer_norm_eps", 1e-12)), config["num_attention_heads"]
    rows = w["embeddings.word_embeddings.weight"][ids]
    if config["type_vocab_size"]:
        rows = rows + w["embeddings.token_type_embeddings.weight"][0]
    rows = norm(w, "embeddings.LayerNorm", rows)
    theta, head_size = config["rope_theta"], rows.shape[1] // num_heads
    turn = reading.frequencies(theta, head_size)
    if config["rope_scaling"]:
        factor = config["rope_scaling"]["factor"]
        turn = reading.frequencies(theta * factor, head_size) / factor ** (2 / head_size)
    for layer in range(config["num_hidden_layers"]):
        own = f"encoder.layer.{layer}"
        query, key, value = reading.linear(w, f"{own}.attention.qkv_proj", rows).chunk(3, dim=-1)
        query, key = (reading.turned(each, num_heads, turn) for each in (query, key))
        found = reading.attention(query, key, value, num_heads)
        rows = norm(w, f"{own}.attn_ln", rows + reading.linear(w, f"{own}.attention.o_proj", found))
        up, gate = reading.linear(w, f"{own}.mlp.up_gate_proj", rows).chunk(2, dim=-1)
        found = reading.linear(
            w, f"{own}.mlp.down_proj", reading.activated(config.get("hidden_act", "gelu"), gate) * up
        )
        rows = norm(w, f"{own}.mlp_ln", rows + found)
    return rows


def first(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    return token_rows(config, weights, ids)[0]


def score(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    pooled = torch.tanh(reading.linear(weights, "new.pooler.dense", token_rows(config, weights, ids)[0]))
    return reading.linear(weights, "classifier", pooled)


def embedding(config: Config, prefix: str = "new.", **others: Any) -> Form:
    modules = POOLED_AND_NORMALIZED
    return Form(config=config, shapes=shapes(config, prefix), row=first, modules=modules, engines=_ENGINES, **others)


_TWICE = {"rope_scaling": {"factor": 2.0, "type": "ntk"}}
_SCORES = {**CONFIG, "architectures": ["NewForSequenceClassification"]}
_POOLER: Shapes = {"new.pooler.dense.weight": (CONFIG["hidden_size"],) * 2, "new.pooler.dense.bias": (24,)}
FORMS = {
    "gte-multilingual-base": embedding(
        CONFIG,
        refused=(
            ("layer_norm_type", "rms_norm"),
            ("logn_attention_scale", True),
            ("position_embedding_type", "absolute"),
            ("pack_qkv", False),
            ("rope_scaling", {"factor": 8.0, "type": "ntk", "mixed_b": 0.6}),
            ("rope_scaling", {"factor": 8.0, "type": "dynamic"}),
        ),
        is_fuzzed=True,
    ),
    "gte-base-en-v1.5": embedding({**CONFIG, "auto_map": OWN_CODE, "type_vocab_size": 0, **_TWICE}, ""),
    "stella_en_400M_v5": embedding({**CONFIG, "auto_map": OWN_CODE, "type_vocab_size": 2, "rope_theta": 160000}),
    "snowflake-arctic-embed-m-v2.0": embedding({**CONFIG, **ARCTIC}, ""),
    "gte without scaling": embedding({**CONFIG, "rope_scaling": None}),
    "gte-multilingual-reranker-base": Form(
        config=_SCORES, shapes=shapes(_SCORES) | _POOLER, row=score, output=OutputKind.LOGITS, engines=_ENGINES
    ),
}
