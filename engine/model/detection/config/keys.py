"""Checks the keys of config.json where the library's own classes are meant: no key that changes rows is passed over.

Some keys are of older versions of transformers or of other code. The installed version would ignore them without a
word, so their values must be those without effect.
"""

from collections.abc import Collection, Iterator, Mapping

from engine.model.detection import library
from engine.model.detection.config.rope import check_rope, passed_over
from engine.model.json_files import Json
from engine.model.known_code.known_code import COMMON, USUAL
from engine.model.known_code.trust import TRUST, check_trusted
from engine.types import ModelError

# Key -> the values without effect, where the architecture does not read the key.
_CHANGES_ROWS: Mapping[str, tuple[object, ...]] = {
    **USUAL,
    "alibi": (False,),
    "causal": (False,),
    "hidden_activation": ("gelu_pytorch_tanh",),
    "is_causal": (False,),
    "layer_norm_type": ("layer_norm",),
    "logn_attention_scale": (False,),
    "moe_every_n_layers": (0,),
    "num_experts": (0, 1),
    "parallel_block": (False,),
    "partial_rotary_factor": (1.0,),
    "prenorm": (False,),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (),
    "use_bidirectional_attention": (False,),
    "use_rms_norm": (False,),
}
# position_embedding_type: BERT and its kin had relative ones. Files of ModernBERT say "absolute", and its code never
# read it; the code from which transformers has these three did.
_ROTATED = ("absolute", "rope", "rotary")
_POSITIONS_OF = dict.fromkeys(("gte", "nomic_bert", "jina_embeddings_v3"), ("rope", "rotary"))
_TEXT = "text_config"
_MAX_NAMED = 12  # keys in a note
# What transformers reads for every architecture, and no engine here: the values without effect, and why it is refused.
_OF_ALL: Mapping[str, tuple[tuple[object, ...], str]] = {
    "per_layer_config": (({},), "it is not computed here"),
    "transformers_weights": ((), "weights are read from model.safetensors, or from the files that its index names"),
}
_SIZES_BY_LAYER = frozenset(("head_dim", "num_key_value_heads"))
# Of files that are often met: what they were for is gone, or concerns training and the making of checkpoints.
_HARMLESS = frozenset(
    (
        *("directionality", "down_scale_factor", "gap_size", "net_structure_type", "model_name", "output_past"),
        *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"),
        *("pooler_type", "sinusoidal_pos_embds", "unsloth_version", "unsloth_fixed", "pretraining_tp"),
        *("quantization_config", "compression_config", "_flash_attn_2_enabled", "reference_compile", "embedding_size"),
        *("summary_activation", "summary_first_dropout", "summary_last_dropout", "summary_type", "summary_use_proj"),
        *("repad_logits_with_grad", "position_embedding_type"),
        *("_sliding_window_pattern", "tie_weights_", "adapters", "bos_token", "eos_token"),
    )
)


def check_keys(config: Json, trusted: Collection[str]) -> tuple[str, ...]:
    """A note on keys that nothing reads, if there are any. trusted: keys that are passed over, which would be refused.

    Raises ModelError for a key that would change rows in other code, and that the architecture does not read.
    """
    model_type = str(config["model_type"])
    read = library.keys_of(model_type)
    if not read:
        return ()
    said = {key: value for key, value in config.items() if value is not None}
    if _TEXT in said and _TEXT not in read:  # its keys would be taken for the model's
        raise ModelError(f"config.json has a {_TEXT}, which transformers' {model_type} does not read; take it out")
    refusals = dict((*_refusals(model_type, said, read), *_of_layers(said, read), *passed_over(said, read)))
    check_trusted(config, trusted, {*refusals, "auto_map"})
    for key, why in refusals.items():
        if key not in trusted:
            raise _passed_over(key, said[key], why)
    check_rope(said, read)
    unread = sorted(
        said.keys() - set(trusted) - read - library.keys_of_all() - COMMON - _CHANGES_ROWS.keys() - _HARMLESS
    )
    names = ", ".join(key[:40] for key in unread[:_MAX_NAMED]) + (" …" if len(unread) > _MAX_NAMED else "")
    return (f"config.json has keys that transformers' {model_type} does not read: {names}",) if unread else ()


def _refusals(model_type: str, config: Json, read: Collection[str]) -> Iterator[tuple[str, str]]:
    """Keys with a value that would not be computed, and why."""
    positions = _POSITIONS_OF.get(model_type, _ROTATED if "rope_parameters" in read else ("absolute",))
    for key, harmless in {**_CHANGES_ROWS, "position_embedding_type": positions}.items():
        if key in config and key not in read and config[key] not in harmless:
            yield key, f"transformers' {model_type} does not compute that"
    for key, (harmless, why) in _OF_ALL.items():
        if key in config and config[key] not in harmless and not (key in read and _has_sizes_alone(config[key])):
            yield key, why


def _has_sizes_alone(by_layer: object) -> bool:
    """Whether layers differ in what some classes save themselves, as EmbeddingGemma 2's, and read for each layer."""
    layers = by_layer.values() if isinstance(by_layer, dict) else [None]
    return all(isinstance(layer, dict) and _SIZES_BY_LAYER.issuperset(layer) for layer in layers)


def _of_layers(config: Json, read: Collection[str]) -> Iterator[tuple[str, str]]:
    """Mistral has one kind of layers: transformers warns of layer_types, and passes over them."""
    if "layer_types" in config and (config["model_type"] == "mistral" or "layer_types" not in read):
        kind = "sliding_attention" if config.get("sliding_window") and "sliding_window" in read else "full_attention"
        if not isinstance(config["layer_types"], list) or set(map(str, config["layer_types"])) - {kind}:
            yield "layer_types", f"each layer would be of {kind}"


def _passed_over(key: str, value: object, why: str) -> ModelError:
    return ModelError(
        f"{key!r} in config.json is {str(value)[:60]!r}, and {why}; if it changes nothing, say so by {TRUST} {key}"
    )
