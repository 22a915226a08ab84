"""BGE's rerankers with a head for each layer, as FlagEmbedding calls them where its user chooses nothing.

Then all layers are computed, and no tokens are compressed. MiniCPM's layers are Granite's under other names. Which head
counts differs: the code of the first always takes the one in the first place, whatever layer is asked for; that of the
second takes the last layer's.
"""

import math

from engine.model.json_files import Json, needed_number, number_in
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "attention_bias"),
)
_ONE_LABEL: Json = {"num_labels": None, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
_FILES = "FlagOpen/FlagEmbedding, FlagEmbedding/inference/reranker/decoder_only/models"
COST_WISE_CLASS = "CostWiseGemmaForSequenceClassification"
LAYERWISE_CLASS = "LayerWiseMiniCPMForSequenceClassification"


def _scored(config: Json, num_heads: int, head: int) -> Json:
    """With its heads. Only the mask says what padding is, as in the code: a text may end with that token."""
    if num_heads < 1:
        raise ModelError("'start_layer' in config.json is beyond the last layer, so no layer has a head")
    known = {key: value for key, value in {**config, **_ONE_LABEL}.items() if value is not None}
    return {**known, "pad_token_id": None, "num_score_heads": num_heads, "score_head": head}


def _cost_wise(raw: Json, config: Json) -> Json:
    last = needed_number(config, "num_hidden_layers")
    layers = range(number_in(raw, "start_layer") or 0, last + 1, number_in(raw, "layer_sep") or 1)
    if last not in layers:
        raise ModelError("'start_layer' and 'layer_sep' in config.json leave the last layer without a head")
    return _scored(config, len(layers), head=0)


COST_WISE = KnownCode(
    source=f"{_FILES}/gemma_model.py and gemma_config.py",
    model_types=frozenset(("cost_wise_gemma",)),
    modules=frozenset(("gemma_model", "gemma_config")),
    repositories=frozenset(("BAAI/bge-reranker-v2.5-gemma2-lightweight",)),
    signs=frozenset(("model_type",)),  # nobody else has it
    architecture="cost_wise_gemma",
    is_ours=True,
    layers="gemma2",
    classes={"CostWiseGemmaForCausalLM": COST_WISE_CLASS},
    same=frozenset(
        (
            *(*_SIZES, "head_dim", "hidden_activation", "query_pre_attn_scalar", "sliding_window"),
            *("attn_logit_softcapping", "final_logit_softcapping"),
        )
    ),
    fixed={"layer_wise": (True,)},
    # Gemma 2's layers read hidden_activation alone, and the window's first name was sliding_window_size
    without_effect=frozenset(("hidden_act", "cache_implementation", "start_layer", "layer_sep", "sliding_window_size")),
    defaults={"layer_wise": False, "start_layer": 28, "layer_sep": 28},
    translate=_cost_wise,
)


def _layerwise(raw: Json, config: Json) -> Json:
    layers, size, heads = (
        needed_number(config, key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    num_heads = layers + 1 - (number_in(raw, "start_layer") or 0)
    return {
        **_scored(config, num_heads, head=num_heads - 1),
        "embedding_multiplier": raw["scale_emb"],
        "residual_multiplier": raw["scale_depth"] / math.sqrt(layers),
        "attention_multiplier": 1 / math.sqrt(size // heads),
    }


LAYERWISE = KnownCode(
    source=f"{_FILES}/modeling_minicpm_reranker.py and configuration_minicpm_reranker.py",
    model_types=frozenset(("minicpm",)),
    modules=frozenset(("modeling_minicpm_reranker", "configuration_minicpm_reranker")),
    repositories=frozenset(("BAAI/bge-reranker-v2-minicpm-layerwise",)),
    signs=frozenset(("head_multi",)),
    architecture="layerwise_minicpm",
    is_ours=True,
    layers="granite",
    classes={"LayerWiseMiniCPMForCausalLM": LAYERWISE_CLASS},
    same=frozenset((*_SIZES, "hidden_act")),
    fixed={"head_multi": (True,), "head_type": ("simple",), "rope_scaling": (), "pretraining_tp": (1,)},
    without_effect=frozenset(("scale_emb", "scale_depth", "start_layer", "dim_model_base")),
    defaults={
        **{"head_multi": True, "head_type": "simple", "pretraining_tp": 1, "start_layer": 8},
        **{"scale_emb": 1, "scale_depth": 1, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
        **{"rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False},
    },
    translate=_layerwise,
)
