"""Llama and similar models: Mistral, Ministral, Ministral 3, Qwen 2 and 3, SmolLM 3, Phi 3, EuroBERT; and Gemma.

Of Gemma these are Gemma 1 and 2, and the text models of Gemma 3, including EmbeddingGemma. Their files hold norms'
weights minus one, and word embeddings are multiplied by the root of the hidden size.
"""

import dataclasses
from collections.abc import Collection, Mapping

import torch
from torch import Tensor
from transformers import PretrainedConfig

from engine.fused.adapters.adapter import (
    Adapter,
    Layout,
    Recipe,
    Recipes,
    affine,
    check_rope,
    derive_angles,
    derive_by_type,
    in_layers,
    layers_by_type,
    require,
    spec_of,
    windows_of,
    with_windows,
)
from engine.fused.model.spec import LayerSpec, Spec
from engine.fused.offer import NotForFused

Names = dict[str, tuple[str, ...]]  # what a layer has, by our name: what the checkpoint calls its parts

LINEARS: Names = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
NORMS: Names = {"attention_norm": ("input_layernorm",), "mlp_norm": ("post_attention_layernorm",)}
HEAD_NORMS: Names = {"query_norm": ("self_attn.q_norm",), "key_norm": ("self_attn.k_norm",)}
PREFIXES = ("model.",)
_BESIDE_IMAGES = ("language_model.model.", "language_model.", "model.language_model.")
_PACKED: Names = LINEARS | {"qkv": ("self_attn.qkv_proj",), "gate_up": ("mlp.gate_up_proj",)}
_OF_ATTENTION = ("qkv", "o")
_OF_MLP = ("gate_up", "down")


def common_spec(config: PretrainedConfig, *, activation: str) -> Spec:
    """The spec of Llama and similar models, without windows, with one table of angles. Raises ModelError."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return spec_of(
        config,
        family="llama",
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        activation=activation,
        is_gated=True,
        norm="rms",
        norm_eps=config.rms_norm_eps,
        is_causal=bool(getattr(config, "is_causal", True)),
        has_final_norm=True,
        layers=(LayerSpec(rope=0),) * config.num_hidden_layers,
    )


def layout(linears: Names, norms: Names, *, biased: Collection[str] = (), plus: float = 0.0) -> Layout:
    """The recipes of a checkpoint in which the layers in `biased` have biases. plus: of norms, see Recipe."""
    layer = affine(linears, has_bias=False) | affine({name: linears[name] for name in biased})
    layer |= _norms(norms, plus)
    ends = {"words": Recipe(("embed_tokens.weight",))} | _norms({"final_norm": ("norm",)}, plus)

    def recipes(spec: Spec) -> Recipes:
        return ends | in_layers(spec, "layers.{}", layer)

    return recipes


def check_whole_heads(config: PretrainedConfig) -> None:
    """Raises ModelError if only a part of each head is rotated, which most architectures do not support."""
    if (config.rope_parameters or {}).get("partial_rotary_factor", 1.0) != 1.0:
        raise NotForFused(f"the fused engine does not compute partial_rotary_factor for {config.model_type}")
    check_rope(config)


def _norms(norms: Names, plus: float) -> Recipes:
    recipes = affine(norms, has_bias=False)
    return {name: dataclasses.replace(recipe, plus=plus) for name, recipe in recipes.items()}


def _llama(config: PretrainedConfig) -> Spec:
    check_whole_heads(config)
    return common_spec(config, activation=config.hidden_act)


def _eurobert(config: PretrainedConfig) -> Spec:
    return dataclasses.replace(_llama(config), is_causal=False)


def _mistral(config: PretrainedConfig) -> Spec:
    return with_windows(_llama(config), [config.sliding_window] * config.num_hidden_layers)


def _ministral3(config: PretrainedConfig) -> Spec:
    _growth(config, num_positions=1)
    return _mistral(config)


def _text_of_mistral3(config: PretrainedConfig) -> Spec:
    """config: of the text alone. Older ones' text is Mistral."""
    require(config, model_type=("ministral3",))
    return _ministral3(config)


def _derive_growing(config: PretrainedConfig, tensors: Mapping[str, Tensor], num_positions: int) -> dict[str, Tensor]:
    """Angles, and those of queries if some positions are so far that queries grow."""
    derived, growth = derive_angles(config, tensors, num_positions), _growth(config, num_positions)
    grows = bool((growth != 1).any())
    return derived | ({"query_rope.0": derived["rope.0"] * growth[:, None]} if grows else {})


def _growth(config: PretrainedConfig, num_positions: int) -> Tensor:
    """float32 [num_positions], by which queries are multiplied: more with each stretch of the original positions.

    Raises ModelError if config.json leaves out a part of it.
    """
    rope = config.rope_parameters
    beta, original = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
    if beta is None or not original:
        raise NotForFused("rope_parameters in config.json lack the growth of queries (llama_4_scaling_beta)")
    stretches = torch.floor(torch.arange(num_positions, dtype=torch.float32) / original)
    return torch.log(1 + stretches) * float(beta) + 1


def _phi3(config: PretrainedConfig) -> Spec:
    check_rope(config)
    spec = common_spec(config, activation=config.hidden_act)
    return with_windows(spec, [config.sliding_window] * config.num_hidden_layers)


def _by_layer_types(config: PretrainedConfig) -> Spec:
    return with_windows(_llama(config), windows_of(config, config.sliding_window))


def _smollm3(config: PretrainedConfig) -> Spec:
    window = config.sliding_window if config.use_sliding_window else None
    spec = with_windows(_llama(config), windows_of(config, window))
    pairs = zip(spec.layers, config.no_rope_layers, strict=True)  # which are those with angles, whatever the name says
    layers = tuple(dataclasses.replace(layer, rope=0 if is_rotated else None) for layer, is_rotated in pairs)
    return dataclasses.replace(spec, layers=layers)


def _layouts(norms: Names, *biased: Collection[str], plus: float = 0.0) -> tuple[Layout, ...]:
    return tuple(layout(LINEARS, norms, biased=each, plus=plus) for each in biased)


_BIASES = ((*_OF_ATTENTION, *_OF_MLP), _OF_ATTENTION, _OF_MLP, ())
_ANY_BIASES = _layouts(NORMS, *_BIASES)

_LLAMA = {
    "llama": Adapter(_llama, _ANY_BIASES, PREFIXES, derive_angles),
    "llama_bidirec": Adapter(_llama, _ANY_BIASES, PREFIXES, derive_angles),
    "eurobert": Adapter(_eurobert, _ANY_BIASES, PREFIXES, derive_angles),
    "smollm3": Adapter(_smollm3, _ANY_BIASES, PREFIXES, derive_angles),
    "mistral": Adapter(_mistral, (layout(LINEARS, NORMS),), PREFIXES, derive_angles),
    "ministral": Adapter(_by_layer_types, (layout(LINEARS, NORMS),), PREFIXES, derive_angles),
    "ministral3": Adapter(_ministral3, (layout(LINEARS, NORMS),), PREFIXES, _derive_growing),
    "mistral3": Adapter(_text_of_mistral3, (layout(LINEARS, NORMS),), _BESIDE_IMAGES, _derive_growing),
    "qwen2": Adapter(_by_layer_types, (layout(LINEARS, NORMS, biased=("qkv",)),), PREFIXES, derive_angles),
    "qwen3": Adapter(_by_layer_types, _layouts(NORMS | HEAD_NORMS, *_BIASES), PREFIXES, derive_angles),
    "phi3": Adapter(_phi3, (layout(_PACKED, NORMS),), PREFIXES, derive_angles),
}

_SANDWICH: Names = {
    "attention_norm": ("input_layernorm",),
    "after_attention_norm": ("post_attention_layernorm",),
    "mlp_norm": ("pre_feedforward_layernorm",),
    "after_mlp_norm": ("post_feedforward_layernorm",),
}


def _scaled(config: PretrainedConfig, *, activation: str) -> Spec:
    spec = common_spec(config, activation=activation)
    return dataclasses.replace(spec, embedding_scale=config.hidden_size**0.5)


def _gemma(config: PretrainedConfig) -> Spec:
    # In transformers it depends on the attention function and on padding whether Gemma 1 and 2 obey it.
    require(config, use_bidirectional_attention=(False,))
    check_whole_heads(config)
    return _scaled(config, activation=config.hidden_act)


def _gemma2(config: PretrainedConfig) -> Spec:
    require(config, use_bidirectional_attention=(False,))
    check_whole_heads(config)
    spec = dataclasses.replace(
        _scaled(config, activation=config.hidden_activation),
        scaling=config.query_pre_attn_scalar**-0.5,
        softcap=config.attn_logit_softcapping,
        sandwich_norms=True,
    )
    return with_windows(spec, windows_of(config, config.sliding_window))


def _gemma3(config: PretrainedConfig) -> Spec:
    require(config, is_causal=(True,))
    return dataclasses.replace(
        _scaled(config, activation=config.hidden_activation),
        scaling=config.query_pre_attn_scalar**-0.5,
        sandwich_norms=True,
        is_causal=not config.use_bidirectional_attention,
        layers=layers_by_type(config, config.sliding_window),  # the configuration halves it where tokens see both ways
    )


_GEMMA_BIASES = (_OF_ATTENTION, ())
_GEMMA = {
    "gemma": Adapter(_gemma, _layouts(NORMS, *_GEMMA_BIASES, plus=1.0), PREFIXES, derive_angles),
    "gemma2": Adapter(_gemma2, _layouts(_SANDWICH, *_GEMMA_BIASES, plus=1.0), PREFIXES, derive_angles),
    "gemma3_text": Adapter(
        _gemma3, _layouts(_SANDWICH | HEAD_NORMS, *_GEMMA_BIASES, plus=1.0), PREFIXES, derive_by_type
    ),
}

ADAPTERS = _LLAMA | _GEMMA
