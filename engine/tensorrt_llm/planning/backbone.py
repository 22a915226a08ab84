"""Checks that the library's backbones compute the same as transformers': its decoders, and its BERT.

Both build a decoder's layers from config.json, and each ignores some entries that the other uses. This file compares
how each reads it: transformers' modeling_{llama,mistral,qwen2,qwen3}.py, and in TensorRT-LLM the files of the same
names, RopeParams.from_config and create_sinusoidal_positions_for_attention_plugin.

RoBERTa and XLM-RoBERTa are BERT with other positions, which our class numbers. Upstream's BERT computes exact GELU,
adds a position and a token type to each token, and reads config.json for sizes alone.
"""

from collections.abc import Iterator

from engine.model.json_files import Json, number_in, object_in
from engine.tensorrt_llm.planning.families import refusal

_ACTIVATIONS = ("silu", "swish")  # of gated MLPs in the library, whatever hidden_act says
# Entries that its tables of angles follow, and transformers' do not.
_ROTARY_ENTRIES = ("rotary_pct", "rotary_dim", "rotary_emb_base", "qk_rope_head_dim")
_PLAIN, _LLAMA3 = "default", "llama3"
_ROPE_TYPES = {
    "llama": (_PLAIN, _LLAMA3),
    "mistral": (_PLAIN, _LLAMA3),
    "qwen2": (_PLAIN,),  # its attention there takes the name for that of another kind of position
    "qwen3": (_PLAIN,),
}
_OF_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_NUM_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}  # if config.json does not say
_WINDOW = 4096  # if config.json does not say
_MAX_WINDOW_LAYERS = 28  # layers before the first with a window, if config.json does not say
_SLIDING = "sliding_attention"
_LAYER_TYPES = frozenset(("full_attention", _SLIDING))
_MLP_WITHOUT_BIAS = frozenset(("qwen2", "qwen3"))  # in transformers; the library follows config.json


def is_causal(config: Json) -> bool:
    """Whether tokens attend only to those before them, in transformers' classes of these architectures."""
    return bool(config.get("is_causal", True))


def check(config: Json, model_type: str, *, max_seqlen: int) -> None:
    """Raises ModelError, see above. max_seqlen: tokens of the longest sequence."""
    if config.get("hidden_act", "silu") not in _ACTIVATIONS:
        raise refusal(f"computes silu alone, and config.json's hidden_act is {str(config['hidden_act'])[:40]!r}")
    if config.get("mlp_bias") and model_type in _MLP_WITHOUT_BIAS:
        raise refusal(f"would look for biases by mlp_bias of config.json, which {model_type} does not have")
    _check_rope(config, model_type)
    _check_positions(config, model_type, max_seqlen)
    window = window_of(config, model_type)
    if window is not None and window < max_seqlen:
        raise refusal(
            f"computes attention without windows, and config.json has one of {window} tokens (sliding_window) for "
            f"sequences of up to {max_seqlen}: --max-input-length {window} makes both the same"
        )


def window_of(config: Json, model_type: str) -> int | None:
    """The tokens to which one attends at most, including itself, in any layer of transformers' class; None = no limit.
    Raises ModelError for types of layers other than full and sliding."""
    is_qwen = model_type.startswith("qwen")
    if model_type == "mistral" or (is_qwen and _has_sliding_layer(config) and config.get("use_sliding_window")):
        return number_in({"sliding_window": _WINDOW, **config}, "sliding_window")
    return None


def _has_sliding_layer(config: Json) -> bool:
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", _MAX_WINDOW_LAYERS)
        return not isinstance(first, int) or first < (number_in(config, "num_hidden_layers") or _MAX_WINDOW_LAYERS + 1)
    if not isinstance(kinds, list) or not _LAYER_TYPES.issuperset(map(str, kinds)):
        raise refusal("computes layers of full attention, and layer_types in config.json has others")
    return _SLIDING in kinds


def _check_positions(config: Json, model_type: str, max_seqlen: int) -> None:
    num_positions = number_in(config, "max_position_embeddings") or _NUM_POSITIONS[model_type]
    if max_seqlen > num_positions:
        raise refusal(
            f"has angles for {num_positions} tokens (max_position_embeddings) and sequences may have {max_seqlen}: "
            f"take --max-input-length {num_positions}"
        )


def _check_rope(config: Json, model_type: str) -> None:
    rope = object_in(config, "rope_scaling") or object_in(config, "rope_parameters")
    if any(isinstance(value, dict) for value in rope.values()):
        raise refusal("computes the same angles in all layers, and config.json has them by layers' types")
    for name in _ROTARY_ENTRIES:
        if config.get(name) is not None:
            raise refusal(f"would use {name} of config.json for its rotary angles, and transformers does not")
    if any(place.get("partial_rotary_factor") not in (None, 1) for place in (config, rope)):
        raise refusal("rotates whole heads only, and config.json has a partial_rotary_factor")
    kind = str(rope.get("rope_type") or rope.get("type") or _PLAIN)
    if kind not in _ROPE_TYPES[model_type]:
        raise refusal(f"does not compute rope_type {kind[:40]!r} for {model_type} as transformers does")
    values = {**rope, **config}
    missing = [name for name in _OF_LLAMA3 if type(values.get(name)) not in (int, float)]
    if kind == _LLAMA3 and missing:
        raise refusal(f"has another default for {missing[0]} of rope_type {_LLAMA3!r}, which config.json lacks")


_COMPUTED = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
_DECODING = ("is_decoder", "add_cross_attention")  # transformers' layers then see only what comes before a token
_NUM_LAYERS = 12  # if config.json does not say
_NUM_BERT_POSITIONS = 512  # if config.json does not say
_PADDING_IDX = 1  # if config.json does not say
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_LAYER = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
ROBERTA_PREFIX = "roberta."  # of the backbone's tensors in a file of a whole RoBERTa or XLM-RoBERTa


def check_bert_layers(config: Json) -> None:
    """Raises ModelError if upstream's BERT would compute other layers."""
    for name, computed in _COMPUTED.items():
        if config.get(name, computed) != computed:
            raise refusal(f"computes {computed} in BERT alone, and config.json has another {name}")


def padding_idx_of(config: Json, *, max_seqlen: int) -> int:
    """RoBERTa's: positions are numbered from it + 1. max_seqlen: tokens of the longest sequence. Raises ModelError if
    the layers or the positions would be others."""
    check_bert_layers(config)
    for name in _DECODING:
        if config.get(name):
            raise refusal(f"lets each token see all in RoBERTa, and config.json has {name}")
    padding_idx = config.get("pad_token_id", _PADDING_IDX)
    if type(padding_idx) is not int or padding_idx < 0:
        raise refusal("numbers RoBERTa's positions from pad_token_id, which config.json lacks")
    num_positions = (number_in(config, "max_position_embeddings") or _NUM_BERT_POSITIONS) - padding_idx - 1
    if max_seqlen > num_positions:
        raise refusal(
            f"has positions for {num_positions} tokens (max_position_embeddings) and sequences may have {max_seqlen}: "
            f"take --max-input-length {num_positions}"
        )
    return padding_idx


def backbone_names(config: Json, prefix: str) -> Iterator[str]:
    """The tensors of a BERT, one by one, because config.json may say a billion layers."""
    yield from (f"{prefix}embeddings.{table}.weight" for table in _TABLES)
    yield from weight_and_bias(f"{prefix}embeddings.LayerNorm")
    for index in range(number_in(config, "num_hidden_layers") or _NUM_LAYERS):
        yield from weight_and_bias(*(f"{prefix}encoder.layer.{index}.{part}" for part in _LAYER))


def weight_and_bias(*modules: str) -> Iterator[str]:
    """The two tensors of each module."""
    for module in modules:
        yield from (f"{module}.weight", f"{module}.bias")
