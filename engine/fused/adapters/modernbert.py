"""ModernBERT: layer norms before attention and MLP, packed weights, windows and angles by the type of a layer."""

from collections.abc import Collection
from itertools import product

from transformers import PretrainedConfig

from engine.fused.adapters.adapter import (
    Adapter,
    Layout,
    Recipe,
    Recipes,
    affine,
    derive_by_type,
    in_layers,
    layers_by_type,
    spec_of,
)
from engine.fused.model.spec import Spec

_NAMES = {
    "qkv": ("attn.Wqkv",),
    "o": ("attn.Wo",),
    "gate_up": ("mlp.Wi",),  # what is activated, then what it is multiplied by
    "down": ("mlp.Wo",),
    "attention_norm": ("attn_norm",),
    "mlp_norm": ("mlp_norm",),
}
_END_NORMS = {"embedding_norm": ("embeddings.norm",), "final_norm": ("final_norm",)}
_KINDS_OF_BIASES = (("qkv", "o"), ("gate_up", "down"), ("attention_norm", "mlp_norm", *_END_NORMS))


def _spec(config: PretrainedConfig) -> Spec:
    return spec_of(
        config,
        family="llama",
        activation=config.hidden_activation,
        is_gated=True,
        norm="layer",
        norm_eps=config.norm_eps,
        has_final_norm=True,
        # `local_attention` counts both sides: a token sees half as many on each, and itself
        layers=layers_by_type(config, config.local_attention // 2 + 1),
    )


def _layout(biased: Collection[str]) -> Layout:
    names = _NAMES | _END_NORMS
    recipes = affine(names, has_bias=False) | affine({name: names[name] for name in biased})
    ends = {name: recipe for name, recipe in recipes.items() if name.rpartition(".")[0] in _END_NORMS}
    layer = {name: recipe for name, recipe in recipes.items() if name not in ends}

    def layout(spec: Spec) -> Recipes:
        everything = (
            {"words": Recipe(("embeddings.tok_embeddings.weight",))} | ends | in_layers(spec, "layers.{}", layer)
        )
        # the embeddings' norm stands for the one that would precede the first attention
        return {name: recipe for name, recipe in everything.items() if "layers.0.attention_norm." not in name}

    return layout


def _layouts() -> tuple[Layout, ...]:
    """One layout for each choice of biases, first the one with all of them."""
    choices = product(*((kind, ()) for kind in _KINDS_OF_BIASES))
    return tuple(_layout([name for kind in choice for name in kind]) for choice in choices)


ADAPTERS = {"modernbert": Adapter(_spec, _layouts(), ("model.",), derive_by_type)}
