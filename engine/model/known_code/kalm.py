"""KaLM-Reranker-V1: how its repositories are told from other T5Gemma 2 models, and what their files say.

Sentence-transformers' part of their code keeps its options in a file of its own. Older snapshots have neither that file
nor a modules.json, and their names tell them.
"""

from pathlib import Path

from engine.model.json_files import Json, check_known, number_in, object_in, read_optional
from engine.model.known_code.known_code import COMMON, KnownCode
from engine.types import ModelError

OPTIONS = "kalm_cross_encoder_config.json"
ARCHITECTURE = "kalm_reranker"
CHUNK = "encoder_chunk_size"
_MODULE = "KaLMCrossEncoderModule"
_LIBRARY, _NAME = "t5gemma2", "kalm-reranker-v1"
_CHUNK_SIZE = 4  # the code's default
_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("max_position_embeddings", "sliding_window", "layer_types", "pad_token_id"),
)
# Of the encoder's and the decoder's layers, besides.
_OF_LAYERS = (
    *("intermediate_size", "hidden_activation", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta"),
    *("rope_local_base_freq", "attention_bias", "query_pre_attn_scalar", "attn_logit_softcapping"),
    *("final_logit_softcapping", "dropout_rate", "sliding_window_pattern", "_sliding_window_pattern"),
)
_FIXED = {"use_bidirectional_attention": (False, None), "attn_logit_softcapping": (None,)}


def is_reranker(config: Json, names: tuple[str, ...], options: Json) -> bool:
    """config: config.json. names: of the repository, in lower case. options: the file of that name, empty if there is
    none."""
    return config.get("model_type") == _LIBRARY and (bool(options) or any(_NAME in name for name in names))


def is_module(config: Json, name: str) -> bool:
    """Whether a class in modules.json is the whole model."""
    return config.get("model_type") == _LIBRARY and name.rpartition(".")[2] == _MODULE


def system_instruction(folder: Path) -> str | None:
    """What the options have in place of the usual words; None = nothing."""
    said = read_optional(folder / OPTIONS).get("system_instruction")
    if said is not None and not isinstance(said, str):
        raise ModelError(f"'system_instruction' in {OPTIONS} is not a text")
    return said


def flattened(config: Json, options: Json) -> Json:
    """config.json with the decoder's sizes on top, as all other models have them, and the chunks. Raises ModelError."""
    check_known(options, (CHUNK, "query_max_length", "document_max_length", "system_instruction"), OPTIONS)
    decoder = object_in(config, "decoder", "config.json")
    encoder = object_in(object_in(config, "encoder", "config.json"), "text_config", "config.json")
    for part in (encoder, decoder):
        _check_layers(part)
    sizes = {key: decoder[key] for key in _SIZES if key in decoder}
    positions = [number_in(part, "max_position_embeddings") for part in (encoder, decoder)]
    if None not in positions:
        sizes["max_position_embeddings"] = min(filter(None, positions))
    chunk = number_in(options, CHUNK, file=OPTIONS) if CHUNK in options else _CHUNK_SIZE
    return {**config, **sizes, CHUNK: chunk or 1}


def _check_layers(part: Json) -> None:
    """Raises ModelError for what transformers' T5Gemma 2 would pass over."""
    for key in sorted(part.keys() - COMMON - {*_SIZES, *_OF_LAYERS, *_FIXED, "is_decoder", "is_encoder_decoder"}):
        if part[key] is not None and part[key] is not False:
            raise ModelError(f"{key[:40]!r} of the encoder or the decoder in config.json is none that T5Gemma 2 reads")
    for key, harmless in _FIXED.items():
        if part.get(key) not in harmless:
            raise ModelError(f"{key!r} in config.json is {part[key]!r}, which transformers' T5Gemma 2 does not compute")


KALM_RERANKER = KnownCode(
    source="KaLM-Embedding/KaLM-Reranker-V1-Nano, kalm_reranker_utils.py",
    model_types=frozenset((_LIBRARY,)),
    modules=frozenset(("kalm_reranker",)),
    signs=frozenset((CHUNK,)),  # put there by `flattened`, so no other T5Gemma 2 has it
    architecture=ARCHITECTURE,
    is_ours=True,
    classes={"T5Gemma2ForConditionalGeneration": "KaLMRerankerForCausalLM"},
    same=frozenset((*_SIZES, "encoder", "decoder", CHUNK)),
    fixed={"is_encoder_decoder": (True,)},
    without_effect=frozenset(
        (
            *("dropout_rate", "classifier_dropout_rate", "image_token_index", "eoi_token_index"),
            *("image_token_id", "eoi_token_id"),
        )
    ),
)
