"""Gemma 1 and 2, and the text models of Gemma 3, including EmbeddingGemma.

Their files hold norms' weights minus one, and word embeddings are multiplied by the root of the hidden size.
"""

import dataclasses

from transformers import PretrainedConfig

from engine.fused.adapters.adapter import (
    Adapter,
    Layout,
    derive_angles,
    derive_by_type,
    layers_by_type,
    require,
    windows_of,
    with_windows,
)
from engine.fused.adapters.llama import HEAD_NORMS, LINEARS, NORMS, PREFIXES, Names, common_spec, layout, whole_heads
from engine.fused.model.spec import Spec

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
    # In transformers it depends on the attention function and on padding whether these two obey it.
    require(config, use_bidirectional_attention=(False,))
    whole_heads(config)
    return _scaled(config, activation=config.hidden_act)


def _gemma2(config: PretrainedConfig) -> Spec:
    require(config, use_bidirectional_attention=(False,))
    whole_heads(config)
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


def _layouts(norms: Names) -> tuple[Layout, ...]:
    return tuple(layout(LINEARS, norms, biased=biased, plus=1.0) for biased in (("qkv", "o"), ()))


ADAPTERS = {
    "gemma": Adapter(_gemma, _layouts(NORMS), PREFIXES, derive_angles),
    "gemma2": Adapter(_gemma2, _layouts(_SANDWICH), PREFIXES, derive_angles),
    "gemma3_text": Adapter(_gemma3, _layouts(_SANDWICH | HEAD_NORMS), PREFIXES, derive_by_type),
}
