"""BERT and its relatives. RoBERTa and similar models, ERNIE and ELECTRA differ from it only in names.

ALBERT is a BERT whose layers all have the same weights, and whose embedding tables are narrower than its layers.
DistilBERT is one without token types. MPNet is one without token types whose attention scores also depend on the
distance of two tokens. NomicBERT, GTE and Jina v3 rotate queries and keys and have no table of positions; their tensors
may have transformers' names or those of the authors' own code, which most files have.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from engine.fused.adapters.adapter import (
    Adapter,
    Recipe,
    Recipes,
    affine,
    check_rope,
    derive_angles,
    in_layers,
    require,
    spec_of,
)
from engine.fused.model.spec import LayerSpec, Spec

MLP = {"gate_up": ("intermediate.dense",), "down": ("output.dense",), "mlp_norm": ("output.LayerNorm",)}
_LAYER = affine(
    {
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "o": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        **MLP,
    }
)
_ALBERT_LAYER = affine(
    {
        "qkv": ("attention.query", "attention.key", "attention.value"),
        "o": ("attention.dense",),
        "attention_norm": ("attention.LayerNorm",),
        "gate_up": ("ffn",),
        "down": ("ffn_output",),
        "mlp_norm": ("full_layer_layer_norm",),
    }
)
_DISTILBERT_LAYER = affine(
    {
        "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "o": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "gate_up": ("ffn.lin1",),
        "down": ("ffn.lin2",),
        "mlp_norm": ("output_layer_norm",),
    }
)


def common_spec(config: PretrainedConfig, **others: Any) -> Spec:
    """The spec of BERT and similar models. others: see `spec_of`. Raises ModelError."""
    require(config, is_decoder=(False,), add_cross_attention=(False,))
    width = getattr(config, "embedding_size", config.hidden_size)
    fields = {
        "num_positions": config.max_position_embeddings,
        "num_types": getattr(config, "type_vocab_size", 0),
        "embedding_size": None if width == config.hidden_size else width,
        "is_gated": False,
        "norm_eps": config.layer_norm_eps,
    }
    return spec_of(config, activation=config.hidden_act, family="bert", norm="layer", **{**fields, **others})


def embeddings(spec: Spec) -> Recipes:
    """The embedding tables, with the names of most BERT-like models."""
    recipes = {"words": Recipe(("embeddings.word_embeddings.weight",))}
    if spec.num_positions:
        recipes["positions"] = Recipe(("embeddings.position_embeddings.weight",))
    if spec.num_types:
        recipes["types"] = Recipe(("embeddings.token_type_embeddings.weight",))
    return recipes | affine({"embedding_norm": ("embeddings.LayerNorm",)})


def _spec_of(config: PretrainedConfig) -> Spec:
    require(config, position_embedding_type=("absolute",), use_task_id=(False,))  # ERNIE may have a table of tasks
    return common_spec(config)


def _layout(spec: Spec) -> Recipes:
    projection = {} if spec.embedding_size is None else affine({"projection": ("embeddings_project",)})
    return embeddings(spec) | projection | in_layers(spec, "encoder.layer.{}", _LAYER)


def _albert(config: PretrainedConfig) -> Spec:
    require(config, num_hidden_groups=(1,), inner_group_num=(1,), position_embedding_type=("absolute",))
    return common_spec(config, embedding_size=config.embedding_size)


def _albert_layout(spec: Spec) -> Recipes:
    projection = affine({"projection": ("encoder.embedding_hidden_mapping_in",)})
    return (
        embeddings(spec) | projection | in_layers(spec, "encoder.albert_layer_groups.0.albert_layers.0", _ALBERT_LAYER)
    )


def _distilbert(config: PretrainedConfig) -> Spec:
    return spec_of(
        config,
        family="bert",
        intermediate_size=config.hidden_dim,
        num_positions=config.max_position_embeddings,
        activation=config.activation,
        is_gated=False,
        norm="layer",
        norm_eps=1e-12,  # no configuration changes it
    )


def _distilbert_layout(spec: Spec) -> Recipes:
    return embeddings(spec) | in_layers(spec, "transformer.layer.{}", _DISTILBERT_LAYER)


_BERT = {
    architecture: Adapter(_spec_of, (_layout,), (f"{prefix}.",))
    for architecture, prefix in {
        "bert": "bert",
        "ernie": "ernie",
        "electra": "electra",
        "roberta": "roberta",
        "xlm-roberta": "roberta",
        "camembert": "roberta",
        "data2vec-text": "data2vec_text",
    }.items()
} | {
    "albert": Adapter(_albert, (_albert_layout,), ("albert.",)),
    "distilbert": Adapter(_distilbert, (_distilbert_layout,), ("distilbert.",)),
}

_NUM_BUCKETS = 32  # transformers looks distances up as if there were so many, whatever the configuration says
_MAX_DISTANCE = 128  # from here on, all distances share a bucket

_MPNET_LAYER = affine(
    {
        "qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        "o": ("attention.attn.o",),
        "attention_norm": ("attention.LayerNorm",),
        **MLP,
    }
)


def _mpnet(config: PretrainedConfig) -> Spec:
    require(config, relative_attention_num_buckets=(_NUM_BUCKETS,))
    return common_spec(config, num_types=0)


def _mpnet_layout(spec: Spec) -> Recipes:
    buckets = {"relative_bias": Recipe(("encoder.relative_attention_bias.weight",))}  # [_NUM_BUCKETS, N]
    return embeddings(spec) | buckets | in_layers(spec, "encoder.layer.{}", _MPNET_LAYER)


def _biases_by_distance(
    config: PretrainedConfig, tensors: Mapping[str, Tensor], num_positions: int
) -> dict[str, Tensor]:
    distances = torch.arange(-_MAX_DISTANCE, _MAX_DISTANCE + 1)
    buckets = tensors["relative_bias"]
    return {"relative_bias": buckets[_bucket_of(distances).to(buckets.device)].T.contiguous()}


def _bucket_of(distances: Tensor) -> Tensor:
    """The bucket [R] of each distance [R], a key's position minus its query's.

    Each direction has half of the buckets. Of these, the first half are for one distance each, the others for ranges
    that get longer (T5, arXiv:1910.10683, 2.1).
    """
    num_one_way = _NUM_BUCKETS // 2
    num_exact = num_one_way // 2
    far = distances.abs()
    steps = torch.log(far.clamp(min=1).float() / num_exact) / math.log(_MAX_DISTANCE / num_exact)
    shared = num_exact + (steps * (num_one_way - num_exact)).long()
    return (distances > 0).long() * num_one_way + torch.where(far < num_exact, far, shared.clamp(max=num_one_way - 1))


_MPNET = {"mpnet": Adapter(_mpnet, (_mpnet_layout,), ("mpnet.",), _biases_by_distance)}
_ATTENTION = {"qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "o": ("self_attn.o_proj",)}
_NORMS = affine({"attention_norm": ("post_attention_layernorm",), "mlp_norm": ("post_mlp_layernorm",)})
_OLD_NORMS = affine({"attention_norm": ("norm1",), "mlp_norm": ("norm2",)})
_GATE_AND_UP = affine({"gate_up": ("mlp.gate_proj", "mlp.up_proj")}, has_bias=False)

_NOMIC = affine({**_ATTENTION, "down": ("mlp.down_proj",)}, has_bias=False)
_OLD_NOMIC = affine(
    {"qkv": ("attn.Wqkv",), "o": ("attn.out_proj",), "gate_up": ("mlp.fc12", "mlp.fc11"), "down": ("mlp.fc2",)},
    has_bias=False,
)
_GTE = affine({**_ATTENTION, "down": ("mlp.down_proj",)})
_OLD_GTE = {
    **affine({"qkv": ("attention.qkv_proj",), "o": ("attention.o_proj",), "down": ("mlp.down_proj",)}),
    **affine({"attention_norm": ("attn_ln",), "mlp_norm": ("mlp_ln",)}),
    "gate_up.weight": Recipe(("mlp.up_gate_proj.weight",), swaps_halves=True),
}
_JINA = affine({**_ATTENTION, "gate_up": ("mlp.fc1",), "down": ("mlp.fc2",)})
_OLD_JINA = affine({"qkv": ("mixer.Wqkv",), "o": ("mixer.out_proj",), "gate_up": ("mlp.fc1",), "down": ("mlp.fc2",)})

# Words of Nomic's own code. Where they are in config.json, transformers leaves them alone, so they must say the same.
_OLD_SIZES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
}
_OLD_CHOICES: dict[str, tuple[object, ...]] = {
    "activation_function": ("swiglu",),
    "parallel_block": (False,),
    "prenorm": (False,),
    "qkv_proj_bias": (False,),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "use_rms_norm": (False,),
}


def _nomic(config: PretrainedConfig) -> Spec:
    require(config, **_OLD_CHOICES)
    require(config, **{old: (getattr(config, name),) for old, name in _OLD_SIZES.items()})
    return _rotated(config, is_gated=True)


def _gte(config: PretrainedConfig) -> Spec:
    require(config, logn_attention_scale=(False,), layer_norm_type=("layer_norm",))
    return _rotated(config, is_gated=True)


def _rotated(config: PretrainedConfig, *, is_gated: bool) -> Spec:
    require(config, position_embedding_type=("rope", "rotary"))
    check_rope(config)
    require(config, rotary_emb_base=(config.rope_parameters["rope_theta"],))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = (LayerSpec(rope=0),) * config.num_hidden_layers
    return common_spec(config, num_positions=0, is_gated=is_gated, head_dim=head_dim, layers=layers)


def _rotary_layout(theirs: str, layer: Recipes, *, norm: str = "embeddings.LayerNorm") -> Callable[[Spec], Recipes]:
    def layout(spec: Spec) -> Recipes:
        return embeddings(spec) | affine({"embedding_norm": (norm,)}) | in_layers(spec, theirs, layer)

    return layout


_ROTARY = {
    "nomic_bert": Adapter(
        _nomic,
        (
            _rotary_layout("layers.{}", _NOMIC | _GATE_AND_UP | _NORMS),
            _rotary_layout("encoder.layers.{}", _OLD_NOMIC | _OLD_NORMS, norm="emb_ln"),
        ),
        ("nomic_bert.", "bert."),
        derive_angles,
    ),
    "gte": Adapter(
        _gte,
        (_rotary_layout("layers.{}", _GTE | _GATE_AND_UP | _NORMS), _rotary_layout("encoder.layer.{}", _OLD_GTE)),
        ("gte.", "new."),
        derive_angles,
    ),
    "jina_embeddings_v3": Adapter(
        partial(_rotated, is_gated=False),
        (
            _rotary_layout("layers.{}", _JINA | _NORMS),
            _rotary_layout("encoder.layers.{}", _OLD_JINA | _OLD_NORMS, norm="emb_ln"),
        ),
        ("roberta.",),
        derive_angles,
    ),
    "xlm-roberta-flash": Adapter(  # of jina-reranker-v2: transformers' layers, with positions in a table
        _spec_of, (_rotary_layout("encoder.layers.{}", _OLD_JINA | _OLD_NORMS, norm="emb_ln"), _layout), ("roberta.",)
    ),
}

ADAPTERS = _BERT | _MPNET | _ROTARY
