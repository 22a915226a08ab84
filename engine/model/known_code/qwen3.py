"""Qwen3 that sees both ways: voyage-4-nano and pplx-embed."""

from engine.model.json_files import Json, needed_number, object_in
from engine.model.known_code.known_code import CHUNK_SEPARATOR, LINEAR, KnownCode

_SIZES = frozenset(
    (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "attention_bias"),
        *("rope_theta", "rope_scaling", "rope_parameters"),
    )
)
_WINDOW = frozenset(("sliding_window", "max_window_layers", "layer_types"))  # without effect: none is switched on
_MODEL = "Qwen3Model"


def _both_ways(_: Json, config: Json) -> Json:
    return {**config, "is_causal": False, "architectures": [_MODEL]}


def _with_linear(raw: Json, config: Json) -> Json:
    """num_labels is the size of a row here, and no number of labels."""
    labels = ("num_labels", "id2label", "label2id")
    kept = {key: value for key, value in config.items() if key not in labels}
    return {**_both_ways(raw, kept), LINEAR: needed_number(raw, "num_labels")}


_OF_CHUNKS = "PPLXQwen3ContextualModel"  # embeds the chunks of a document in one sequence


def _pplx(raw: Json, config: Json) -> Json:
    is_of_chunks = str(object_in(raw, "auto_map").get("AutoModel")).endswith(_OF_CHUNKS)
    return {**_both_ways(raw, config), **({CHUNK_SEPARATOR: "<|endoftext|>"} if is_of_chunks else {})}


VOYAGE = KnownCode(
    source="voyageai/voyage-4-nano, modeling_qwen3_bidirectional.py",
    model_types=frozenset(("qwen3",)),
    modules=frozenset(("modeling_qwen3_bidirectional",)),
    architecture="qwen3",
    classes={"Qwen3BidirectionalModel": _MODEL, "Qwen3ForCausalLM": _MODEL},
    same=_SIZES,
    fixed={"use_sliding_window": (False,), "use_bidirectional_attention": (True,)},
    without_effect=_WINDOW,
    translate=_with_linear,
)
PPLX = KnownCode(
    source="perplexity-ai/pplx-embed-v1-0.6b and pplx-embed-context-v1-0.6b, modeling.py and st_quantize.py",
    model_types=frozenset(("bidirectional_pplx_qwen3",)),
    modules=frozenset(("modeling", "configuration")),
    signs=frozenset(("model_type",)),  # nobody else has it
    rounding_module="st_quantize.FlexibleQuantizer",
    rounds=True,
    architecture="qwen3",
    classes={name: _MODEL for name in ("PPLXQwen3Model", _OF_CHUNKS)},
    same=_SIZES,
    fixed={"use_sliding_window": (False,), "use_bidirectional_attention": (True,)},
    without_effect=_WINDOW,
    translate=_pplx,
)
