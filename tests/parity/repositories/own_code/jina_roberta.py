"""Jina's XLM-RoBERTa with rotary positions in its published forms, against a reading of its code: jina-embeddings-v3
with its adapters, jina-reranker-v2-base-multilingual and jina-colbert-v2.

Read: jinaai/xlm-roberta-flash-implementation, modeling_xlm_roberta.py, embedding.py and modeling_lora.py
(LoRAParametrization.lora_forward); config.json as in the three repositories.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.types import OutputKind
from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import reading
from tests.parity.repositories.own_code.forms import FUSED, OPENVINO, TRANSFORMERS, Config, Form, Shapes, Weights

RANK = 2
TASKS = ("retrieval.query", "retrieval.passage", "separation", "classification", "text-matching")
_CODE = "jinaai/xlm-roberta-flash-implementation--"
_BASE: dict[str, Any] = published("jina-colbert-v2, small")
V3: dict[str, Any] = published("jina-embeddings-v3, small")
RERANKER: dict[str, Any] = published("jina-reranker-v2-base-multilingual, small")
COLBERT = {
    **_BASE,
    "architectures": ["HF_ColBERT"],
    "auto_map": {
        "AutoConfig": f"{_CODE}configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": f"{_CODE}modeling_xlm_roberta.XLMRobertaModel",
    },
}
V3_MODULES = {"custom_st.Transformer": "", "Pooling:mean": "1_Pooling", "Normalize": "2_Normalize"}


def shapes(config: Config, *, num_positions: int = 0) -> Shapes:
    v, d, f = (config[key] for key in ("vocab_size", "hidden_size", "intermediate_size"))
    found: Shapes = {"roberta.embeddings.word_embeddings.weight": (v, d)}
    if num_positions:
        found["roberta.embeddings.position_embeddings.weight"] = (num_positions, d)
    found |= {"roberta.embeddings.token_type_embeddings.weight": (1, d)}
    found |= {"roberta.emb_ln.weight": (d,), "roberta.emb_ln.bias": (d,)}
    layers = {"mixer.Wqkv": (3 * d, d), "mixer.out_proj": (d, d), "mlp.fc1": (f, d), "mlp.fc2": (d, f)}
    for number in range(config["num_hidden_layers"]):
        for name, shape in {**layers, "norm1": (d,), "norm2": (d,)}.items():
            layer = f"roberta.encoder.layers.{number}.{name}"
            found |= {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
    return found


def with_adapters(plain: Shapes) -> Shapes:
    """As the code stores layers and tables that have adapters."""
    found: Shapes = {}
    for name, shape in plain.items():
        if len(shape) != 2 or not name.endswith(".weight"):
            found[name] = shape
            continue
        own, (rows, columns) = name.removesuffix("weight") + "parametrizations.weight", shape
        is_table = "embeddings" in name
        found[f"{own}.original"] = shape
        found[f"{own}.0.lora_A"] = (len(TASKS), rows, RANK) if is_table else (len(TASKS), RANK, columns)
        found[f"{own}.0.lora_B"] = (len(TASKS), RANK, columns) if is_table else (len(TASKS), rows, RANK)
    return found


def of_task(named: Weights, task: int | None) -> Weights:
    """Plain weights, the task's adapter added to each: W + B A * alpha / rank, of tables W + A B."""
    found = {}
    for name, tensor in named.items():
        if ".0.lora_" in name:
            continue
        plain = name.replace("parametrizations.weight.original", "weight")
        if plain != name and task is not None:
            own = name.removesuffix("original")
            first, second = named[f"{own}0.lora_A"][task], named[f"{own}0.lora_B"][task]
            product = first @ second if "embeddings" in name else second @ first
            tensor = tensor + product * V3["lora_alpha"] / RANK
        found[plain] = tensor
    return found


def token_rows(config: Config, w: Weights, ids: list[int]) -> Tensor:
    """The reading. Positions are absolute, from pad_token_id + 1 on, where there is a table for them."""
    norm, num_heads = partial(reading.norm, eps=config["layer_norm_eps"]), config["num_attention_heads"]
    rows = w["roberta.embeddings.word_embeddings.weight"][ids] + w["roberta.embeddings.token_type_embeddings.weight"][0]
    positions = w.get("roberta.embeddings.position_embeddings.weight")
    rows = rows if positions is None else rows + positions[2 : len(ids) + 2]
    rows = norm(w, "roberta.emb_ln", rows)
    theta = config["rotary_emb_base"] if positions is None else 1.0
    turn = reading.frequencies(theta, rows.shape[1] // num_heads) * (positions is None)
    for number in range(config["num_hidden_layers"]):
        layer = f"roberta.encoder.layers.{number}"
        query, key, value = reading.linear(w, f"{layer}.mixer.Wqkv", rows).chunk(3, dim=-1)
        query, key = (reading.turned(each, num_heads, turn) for each in (query, key))
        found = reading.attention(query, key, value, num_heads)
        rows = norm(w, f"{layer}.norm1", rows + reading.linear(w, f"{layer}.mixer.out_proj", found))
        found = reading.linear(w, f"{layer}.mlp.fc2", reading.gelu(reading.linear(w, f"{layer}.mlp.fc1", rows)))
        rows = norm(w, f"{layer}.norm2", rows + found)
    return rows


def mean(config: Config, weights: Weights, ids: list[int], *, task: int | None = None) -> Tensor:
    """Without a task there is no adapter."""
    return token_rows(config, of_task(weights, task), ids).mean(0)


def score(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    hidden = torch.tanh(reading.linear(weights, "classifier.dense", token_rows(config, weights, ids)[0]))
    return reading.linear(weights, "classifier.out_proj", hidden)


def vectors(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    return functional.normalize(reading.linear(weights, "linear", token_rows(config, weights, ids)), dim=1)


_METADATA = {
    **{"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 32, "dim": 12},
    **{"attend_to_mask_tokens": True, "mask_punctuation": True},
}
_D = _BASE["hidden_size"]
_POOLER: Shapes = {"roberta.pooler.dense.weight": (_D, _D), "roberta.pooler.dense.bias": (_D,)}
_HEAD: Shapes = {
    **{"classifier.dense.weight": (_D, _D), "classifier.dense.bias": (_D,)},
    **{"classifier.out_proj.weight": (1, _D), "classifier.out_proj.bias": (1,)},
}
FORMS = {
    "jina-embeddings-v3": Form(
        config=V3,
        shapes=with_adapters(shapes(V3) | _POOLER),
        row=mean,
        modules=V3_MODULES,
        refused=(("load_trained_adapters", False),),
        is_fuzzed=True,
    ),
    "jina-reranker-v2-base-multilingual": Form(
        config=RERANKER,
        shapes=shapes(RERANKER, num_positions=66) | _HEAD,
        row=score,
        output=OutputKind.LOGITS,
        engines=(TRANSFORMERS, OPENVINO, FUSED),
        refused=(("position_embedding_type", "alibi"),),
    ),
    "jina-colbert-v2": Form(
        config=COLBERT,
        shapes=shapes(COLBERT) | {"linear.weight": (12, _D)},
        row=vectors,
        output=OutputKind.MULTI_VECTOR,
        files={"artifact.metadata": _METADATA},
        engines=(TRANSFORMERS, FUSED),
        refused=(("rotary_emb_interleaved", True), ("rotary_emb_scale_base", 512), ("lora_adaptations", ["a"])),
    ),
}
