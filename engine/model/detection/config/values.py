"""Checks the values in config.json: their types, their ranges, and sizes that must divide each other.

Libraries differ in what they make of others: 0 may mean the default, true may be read as 1, and a negative number may
be computed with. Knows nothing of which keys are read: see keys.py.
"""

import math
from typing import TypeGuard

from engine.model.detection import library
from engine.model.json_files import Json
from engine.types import ModelError

_SIZES = frozenset(
    (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "sliding_window", "local_attention", "global_attn_every_n_layers", "sliding_window_pattern"),
        *("max_position_embeddings", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "dim", "hidden_dim"),
        *("n_layers", "n_heads", "embedding_size", "vocab_size", "pad_vocab_size_multiple", "max_trained_positions"),
        *("d_model", "d_kv", "d_ff", "num_layers", "num_heads", "pooler_hidden_size", "lora_rank", "num_labels"),
        *("moe_top_k", "relative_attention_num_buckets", "relative_attention_max_distance", "emb_dim"),
    )
)
_COUNTS = frozenset(("type_vocab_size", "num_experts", "moe_every_n_layers", "max_window_layers"))  # 0 is one
_BY_LAYER = {"intermediate_size": ("gemma3n", "gemma3n_text")}  # key -> architectures that may have a list of them
_UNLIMITED = ("xlnet",)  # which writes -1 for the number of positions
_POSITIVE = frozenset(
    (
        *("rope_theta", "global_rope_theta", "local_rope_theta", "rope_local_base_freq", "rotary_emb_base"),
        *("rotary_scaling_factor", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    )
)
_EPSILONS = ("norm_eps", "norm_epsilon")  # what their keys end with
_NUMBERS = frozenset(("lora_alpha",))
_SWITCHES = frozenset(
    ("is_causal", "is_decoder", "use_bidirectional_attention", "use_sliding_window", "attention_bias", "mlp_bias")
)
_OBJECTS = frozenset(("auto_map", "rope_scaling", "rope_parameters", "latent_attention_config"))
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation", "activation_function")
WIDTHS = ("hidden_size", "dim", "n_embd", "d_model", "emb_dim")  # the numbers of a row; XLM's and FlauBERT's come last
# The numbers of a row -> the heads that share them.
_HEADS = {"hidden_size": "num_attention_heads", "dim": "n_heads", "n_embd": "n_head", "emb_dim": "n_heads"}
_NO_PADDING = -1  # what files of decoders say where there is none


def check_values(config: Json) -> None:
    """Raises ModelError for a value of another type, or out of the range that its key has in every architecture."""
    for key, value in config.items():
        if value is None or (value == -1 and key in _SIZES and config.get("model_type") in _UNLIMITED):
            continue
        if key == "sliding_window" and value == 0 and config.get("use_sliding_window") is False:
            continue  # as Qwen2-MoE's class saves it
        is_list = config.get("model_type") in _BY_LAYER.get(key, ()) and isinstance(value, list) and value
        wanted = next(filter(None, (_wanted(key, each) for each in (value if is_list else [value]))), "")
        if wanted:
            raise ModelError(f"{key!r} in config.json is not {wanted}")


def _wanted(key: str, value: object) -> str:
    """What the value must be and is not, in words; "" if it is well."""
    if key in _OBJECTS:
        return "" if isinstance(value, dict) else "a JSON object"
    if key == "id2label":
        return "" if isinstance(value, dict) and all(map(str.isdecimal, value)) else "an object with a name by number"
    if key == "model_type":
        return "" if isinstance(value, str) else "a name"
    if key in _SWITCHES:
        return "" if isinstance(value, bool) else "true or false"
    if key in _SIZES:
        return "" if _is_whole(value) and value > 0 else "a positive integer"
    if key in _COUNTS:
        return "" if _is_whole(value) and value >= 0 else "0 or a positive integer"
    if key in _POSITIVE or key.endswith(_EPSILONS):
        return "" if _is_finite(value) and value > 0 else "a positive number"
    is_number = key in _NUMBERS or isinstance(value, float)  # NaN and infinity are of no use to any key
    return "a number" if is_number and not _is_finite(value) else ""


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_agreement(config: Json, layers: str, *, has_code: bool) -> None:
    """Raises ModelError for values of config.json that don't fit each other, or of which the architecture has none.

    Expects check_values before. layers: the library's architecture that has these layers, or a name of ours. has_code:
    whether the file is written for code of its own.
    """
    read = library.keys_of(layers)
    for key in _ACTIVATIONS:
        if config.get(key) is not None and key in read and not _is_activation(config[key]):
            raise ModelError(f"{key!r} in config.json is no activation that transformers has")
    for size, heads in _HEADS.items():
        if config.get(size) is not None and config.get(heads) is not None:
            _check_heads(config, size, heads, layers)
    _check_padding(config, layers, has_code=has_code)


def _is_activation(value: object) -> bool:
    names = library.activations()
    return isinstance(value, str) and (value in names or not names)


def _check_heads(config: Json, size: str, heads: str, layers: str) -> None:
    read, width, count = library.keys_of(layers), config[size], config[heads]
    shared = config.get("num_key_value_heads") if "num_key_value_heads" in read else None
    if shared is not None and count % shared:
        raise ModelError(f"'num_key_value_heads' in config.json is {shared}, which does not divide {heads!r}, {count}")
    head_size = config.get("head_dim") if "head_dim" in read else None
    if head_size is None and library.has_head_size(layers):
        return
    if head_size is None and width % count:
        raise ModelError(f"{heads!r} in config.json is {count}, which does not divide {size!r}, {width}")
    if "rope_parameters" in read and "partial_rotary_factor" not in read and (head_size or width // count) % 2:
        parts = (
            f"{heads!r} in config.json cuts {size!r} into parts"
            if head_size is None
            else "'head_dim' in config.json is"
        )
        raise ModelError(f"{parts} of an odd size, and numbers are turned in pairs")


def _check_padding(config: Json, layers: str, *, has_code: bool) -> None:
    """An id outside of the vocabulary ends in an assertion; libraries differ in what a negative one means."""
    padding, num_rows = config.get("pad_token_id"), config.get("vocab_size")
    if padding is None or (padding == _NO_PADDING and not has_code):
        return
    is_row = _is_whole(padding) and padding >= 0 and (num_rows is None or padding < num_rows)
    if not is_row and (has_code or library.has_padding(layers) or not _is_whole(padding)):
        raise ModelError("'pad_token_id' in config.json is no row of the model's vocabulary (vocab_size)")
