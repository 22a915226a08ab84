"""ALBERT: BERT whose layers all have the same weights, and whose tables are narrower than its layers."""

import dataclasses

from transformers import PretrainedConfig

from engine.fused.adapters.bert import common_spec, embeddings
from engine.fused.adapters.configuration import demand
from engine.fused.adapters.recipe import Adapter, Recipes, affine, in_layers
from engine.fused.model.spec import Spec

_LAYER = affine(
    {
        "qkv": ("attention.query", "attention.key", "attention.value"),
        "o": ("attention.dense",),
        "attention_norm": ("attention.LayerNorm",),
        "up": ("ffn",),
        "down": ("ffn_output",),
        "mlp_norm": ("full_layer_layer_norm",),
    }
)


def _spec_of(config: PretrainedConfig) -> Spec:
    demand(config, num_hidden_groups=(1,), inner_group_num=(1,), position_embedding_type=("absolute",))
    return dataclasses.replace(common_spec(config), embedding_size=config.embedding_size)


def _layout(spec: Spec) -> Recipes:
    projection = affine({"projection": ("encoder.embedding_hidden_mapping_in",)})
    return embeddings(spec) | projection | in_layers(spec, "encoder.albert_layer_groups.0.albert_layers.0", _LAYER)


ADAPTERS = {"albert": Adapter(_spec_of, (_layout,), ("albert.",))}
