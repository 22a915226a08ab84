"""Liquid AI's LFM2 that sees both ways: LFM2.5-Embedding, LFM2.5-ColBERT, LFM2.5-Encoder.

Without its code transformers' own class would compute it as a decoder: the first token, which is pooled, would see no
other, and all texts would have the same row.
"""

from engine.model.json_files import Json, object_in
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_FILE, _MODEL, _MASKED_LM = "modeling_lfm2_bidirectional", "Lfm2BidirectionalModel", "Lfm2BidirectionalForMaskedLM"
_BEGINNING = "Lfm2Bidir"  # of all its classes' names


def _is_named(config: Json) -> bool:
    """By the code, or by a class where somebody took auto_map out."""
    codes = object_in(config, "auto_map", "config.json").values()
    return any(_FILE in str(code) for code in codes) or bool(_classes(config))


def _classes(config: Json) -> list[str]:
    return [str(name) for name in config.get("architectures") or () if str(name).startswith(_BEGINNING)]


def _translate(raw: Json, config: Json) -> Json:
    if others := sorted({*_classes(raw)} - {_MODEL, _MASKED_LM}):
        raise ModelError(
            f"config.json names {others[0][:60]}, whose head only the model's own code has; it is never run"
        )
    return config


LFM2_BIDIREC = KnownCode(
    source="LiquidAI/LFM2.5-Embedding-350M and LFM2.5-ColBERT-350M, modeling_lfm2_bidirectional.py",
    model_types=frozenset(("lfm2",)),
    modules=frozenset((_FILE,)),
    signs=frozenset(("model_type",)),
    chosen_by=_is_named,
    architecture="lfm2_bidirec",
    is_ours=True,
    layers="lfm2",
    classes={_MODEL: _MODEL, _MASKED_LM: _MASKED_LM},
    same=frozenset(
        (
            *("vocab_size", "hidden_size", "intermediate_size", "block_ff_dim", "num_hidden_layers", "head_dim"),
            *("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "norm_eps", "layer_types"),
            *("full_attn_idxs", "conv_L_cache", "conv_bias", "block_multiple_of", "block_ffn_dim_multiplier"),
            *("block_auto_adjust_ff_dim", "rope_theta", "rope_parameters", "rope_scaling"),
        )
    ),
    fixed={"block_use_swiglu": (True,), "use_pos_enc": (True,)},
    # sizes that other keys say for the class, and the making of weights
    without_effect=frozenset(
        (
            *("block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_xavier_init"),
            *("conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta", "tie_embedding"),
            "disable_flash_attention",
        )
    ),
    translate=_translate,
)
