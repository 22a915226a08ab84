"""BERT, and models that differ from it only in names: RoBERTa and similar models, ERNIE, ELECTRA.

ALBERT is a BERT whose layers all have the same weights, and whose embedding tables are narrower than its layers.
DistilBERT is one without token types.
"""

from typing import Any

from transformers import PretrainedConfig

from engine.fused.adapters.adapter import Adapter, Recipe, Recipes, affine, in_layers, require, spec_of
from engine.fused.model.spec import Spec

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
    """Of BERT and similar models. others: see `spec_of`. Raises ModelError."""
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


ADAPTERS = {
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
