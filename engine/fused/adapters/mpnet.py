"""MPNet: BERT without token types, and with attention scores that also depend on the distance of two tokens."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PretrainedConfig

from engine.fused.adapters.adapter import Adapter, Recipe, Recipes, affine, in_layers, require
from engine.fused.adapters.bert import MLP, common_spec, embeddings
from engine.fused.model.spec import Spec

_NUM_BUCKETS = 32  # transformers looks distances up as if there were so many, whatever the configuration says
_MAX_DISTANCE = 128  # from here on, all distances share a bucket

_LAYER = affine(
    {
        "qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        "o": ("attention.attn.o",),
        "attention_norm": ("attention.LayerNorm",),
        **MLP,
    }
)


def _spec_of(config: PretrainedConfig) -> Spec:
    require(config, relative_attention_num_buckets=(_NUM_BUCKETS,))
    return common_spec(config, num_types=0)


def _layout(spec: Spec) -> Recipes:
    buckets = {"relative_bias": Recipe(("encoder.relative_attention_bias.weight",))}  # [_NUM_BUCKETS, N]
    return embeddings(spec) | buckets | in_layers(spec, "encoder.layer.{}", _LAYER)


def _derive(config: PretrainedConfig, tensors: Mapping[str, Tensor], num_positions: int) -> dict[str, Tensor]:
    """Biases by distance instead of by bucket."""
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


ADAPTERS = {"mpnet": Adapter(_spec_of, (_layout,), ("mpnet.",), _derive)}
