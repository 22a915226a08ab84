"""Checks what config.json says before anything is loaded: its keys, their values, and the angles of positions (RoPE).

No key that changes rows is passed over. Some are of older versions of transformers or of other code, and the installed
version would ignore them without a word, so their values must be those without effect. Libraries differ in what they
make of wrong values: 0 may mean the default, true may be read as 1, and a negative number may be computed with.

Of the angles by which queries and keys are turned, older files have rope_scaling and a base outside of it. Newer ones
have rope_parameters, some with an object for each type of layer. transformers passes over what it does not know among
them, or ends in a KeyError while it makes the model.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TypeGuard

from engine.model.detection import library
from engine.model.json_files import Json, object_in
from engine.model.known_code.known_code import COMMON, TRUST, USUAL, check_trusted
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
_POSITIONS_OF = {
    **dict.fromkeys(("gte", "nomic_bert", "jina_embeddings_v3"), ("rope", "rotary")),
    "modernbert": (
        *_ROTATED,
        "sans_pos",
    ),  # without a table of positions, as the code that trained Ettin and mmBERT says
}
_TEXT = "text_config"
_MAX_NAMED = 12  # keys in a note
# Read by transformers for every architecture, and by no engine here: the values without effect, and why it is refused.
_OF_ALL: Mapping[str, tuple[tuple[object, ...], str]] = {
    "per_layer_config": (({},), "it is not computed here"),
    "transformers_weights": ((), "weights are read from model.safetensors, or from the files that its index names"),
}
_SIZES_BY_LAYER = frozenset(("head_dim", "num_key_value_heads"))
# Keys of files that are often met: what they were for is gone, or concerns training and the making of checkpoints.
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
    Raises ModelError for a key that would change rows in other code, and that the architecture does not read."""
    model_type = str(config["model_type"])
    read = library.keys_of(model_type)
    if not read:
        return ()
    said = {key: value for key, value in config.items() if value is not None}
    if _TEXT in said and _TEXT not in read:  # its keys would be taken for the model's
        raise ModelError(f"config.json has a {_TEXT}, which transformers' {model_type} does not read; take it out")
    parts = _parts(said)
    refusals = {key: (part[key], why) for part in parts for key, why in _all_refusals(part)}
    check_trusted(config, trusted, {*refusals, "auto_map"})
    for key, (value, why) in refusals.items():
        if key not in trusted:
            raise ModelError(
                f"{key!r} in config.json is {str(value)[:60]!r}, and {why}; if it changes nothing, say so by "
                f"{TRUST} {key}"
            )
    for part in parts:
        check_rope(part, library.keys_of(str(part["model_type"])))
    return tuple(note for part in parts for note in _note_on_unread(part, trusted))


def layers_of(config: Json) -> str:
    """The library's architecture of the layers that config.json describes: of its text, where it has other parts."""
    return str(_parts(config)[-1]["model_type"])


def _parts(config: Json) -> list[Json]:
    """config.json; or what it says outside of text_config, and text_config, if that has an architecture of its own.

    The keys of text_config are also on top, see engine.model.model_folder.
    """
    text = object_in(config, _TEXT)
    if not text.get("model_type") or _TEXT not in library.keys_of(str(config["model_type"])):
        return [config]
    text = {key: value for key, value in text.items() if value is not None}
    return [{key: value for key, value in config.items() if key == "model_type" or text.get(key) != value}, text]


def _all_refusals(config: Json) -> Iterator[tuple[str, str]]:
    model_type = str(config["model_type"])
    if read := library.keys_of(model_type):
        yield from (*_refusals(model_type, config, read), *_of_layers(config, read), *passed_over(config, read))


def _note_on_unread(config: Json, trusted: Collection[str]) -> Iterator[str]:
    model_type = str(config["model_type"])
    read = library.keys_of(model_type)
    known = {*trusted, *read, *library.keys_of_all(), *COMMON, *_CHANGES_ROWS, *_HARMLESS}
    if read and (unread := sorted(config.keys() - known)):
        names = ", ".join(key[:40] for key in unread[:_MAX_NAMED]) + (" …" if len(unread) > _MAX_NAMED else "")
        yield f"config.json has keys that transformers' {model_type} does not read: {names}"


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
_BY_LAYER = {
    "intermediate_size": ("gemma3n", "gemma3n_text"),
    "rope_theta": ("ultrabert",),
}  # key -> architectures that may have a list of them
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
    """A description of what the value must be and is not; "" if it is well."""
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
    read, names = library.keys_of(layers), library.activations()
    for key in _ACTIVATIONS:
        value = config.get(key) if key in read else None
        if value is not None and (not isinstance(value, str) or (names and value not in names)):
            raise ModelError(f"{key!r} in config.json is no activation that transformers has")
    if layers == "ultrabert":
        _check_lists(config)
    for size, heads in _HEADS.items():
        if config.get(size) is not None and config.get(heads) is not None:
            _check_heads(config, size, heads, layers)
    _check_padding(config, layers, has_code=has_code)


def _check_lists(config: Json) -> None:
    """UltraBERT's published files have a window and a base of angles for each layer. transformers keeps one of them for
    each type of layers."""
    windows, kinds = config.get("attention_windows"), config.get("layer_types")
    if windows is not None:
        is_list = isinstance(windows, list) and all(each is None or (_is_whole(each) and each >= 0) for each in windows)
        found = ["sliding_attention" if window else "full_attention" for window in windows] if is_list else None
        if found and kinds not in (None, found):
            raise ModelError("'layer_types' in config.json says other types of layers than attention_windows")
        kinds = found
    for key in ("attention_windows", "rope_theta"):
        values = config.get(key)
        if values is not None and not _is_one_for_each(values, kinds, config.get("num_hidden_layers")):
            raise ModelError(f"{key!r} in config.json has no number for each layer, or several for one type of layers")


def _is_one_for_each(values: object, kinds: object, num_layers: object) -> bool:
    """Whether each layer has a value, which is the same for all of its kind."""
    if not isinstance(values, list) or not isinstance(kinds, list) or not len(values) == len(kinds) == num_layers:
        return False
    pairs = {(str(kind), str(value or 0)) for kind, value in zip(kinds, values, strict=True)}
    return len(pairs) == len({kind for kind, _ in pairs})


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


PLACES = ("rope_parameters", "rope_scaling")
_ROTATES = "rope_parameters"  # what the source of an architecture with such angles reads
# The base of the angles in older files -> the layers under whose name newer ones have it.
_THETAS = {
    "rope_theta": "full_attention",
    "global_rope_theta": "full_attention",
    "local_rope_theta": "sliding_attention",
    "rope_local_base_freq": "sliding_attention",
}
_LENGTH = "original_max_position_embeddings"
# rope_type -> the keys that it needs, and others that it reads or that are without effect beside it.
_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), (_LENGTH, "factor")),  # a factor of 1
    "linear": (("factor",), (_LENGTH,)),
    "dynamic": (("factor",), ()),
    "yarn": (
        ("factor",),
        (_LENGTH, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (("short_factor", "long_factor"), (_LENGTH, "factor", "attention_factor")),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), (_LENGTH,)),
    "proportional": ((), ("factor",)),
}
_OF_EVERY_KIND = frozenset(("rope_type", "type", "rope_theta", "partial_rotary_factor"))
_LISTS = frozenset(("short_factor", "long_factor"))
_NO_NUMBERS = frozenset(("rope_type", "type", "truncate"))
_OLD_LONGROPE = ("su", "yarn")  # the names that Phi3's files had for it
# Keys of the objects; outside of them, transformers reads none. And the values without effect.
_OUTSIDE: Mapping[str, tuple[object, ...]] = {
    "rope_type": ("default",),
    "factor": (1,),
    **dict.fromkeys(("short_factor", "long_factor", "low_freq_factor", "high_freq_factor", "attention_factor"), ()),
    **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), ()),
}


def passed_over(config: Json, read: Collection[str]) -> Iterator[tuple[str, str]]:
    """Keys outside of the objects which would not be computed, and why. read: library.keys_of the architecture."""
    model_type = config["model_type"]
    if _ROTATES not in read:
        for place in PLACES:
            if config.get(place) and place not in read:
                yield place, f"transformers' {model_type} does not turn queries and keys by angles"
        return
    inner = [rope for place in PLACES for _, rope in _objects(config, place)]
    for key, harmless in _OUTSIDE.items():
        is_said_inside = inner and all(rope.get(key) == config.get(key) for rope in inner)
        if key in config and config[key] not in harmless and not is_said_inside:
            yield key, f"transformers reads it only within {_ROTATES}"
    for key in _THETAS:
        if key in config and key not in read and key not in library.keys_of_all():
            yield key, f"transformers' {model_type} does not read it"


def check_rope(config: Json, read: Collection[str]) -> None:
    """Raises ModelError for angles that transformers does not compute, and where keys contradict each other."""
    if _ROTATES not in read:
        return
    new, old = (object_in(config, place) for place in PLACES)
    if new and old and new != old:
        raise ModelError("rope_parameters and rope_scaling in config.json differ; leave out the one that does not hold")
    for place in PLACES:
        _check_form(config, place, read)
        for name, rope in _objects(config, place):
            _check_kind(config, rope, name, read)
        _check_outside(config, place)


def _objects(config: Json, place: str) -> Iterator[tuple[str, Json]]:
    """The angles of all layers, or of each type of layer, with their names in messages. Raises ModelError."""
    rope = object_in(config, place)
    layers = [key for key, value in rope.items() if isinstance(value, dict)]
    for key in layers:
        yield f"{place}.{key}", rope[key]
    if rope and not layers:
        yield place, rope


def _check_form(config: Json, place: str, read: Collection[str]) -> None:
    """Some architectures have angles for each type of layer. The others would take the defaults instead of these."""
    rope, model_type = object_in(config, place), str(config["model_type"])
    layers = {key for key, value in rope.items() if isinstance(value, dict)}
    has_layers, takes_old = library.turns_by_layer(model_type)
    if has_layers and rope and not layers and not (place == "rope_scaling" and takes_old):
        raise ModelError(f"{place} in config.json needs an object for each type of layer of a {model_type}")
    if layers and (not has_layers or (place == "rope_scaling" and takes_old)):
        raise ModelError(f"{place} in config.json has {min(layers)[:40]!r}, and a {model_type} reads none there")
    if layers and (others := {key for key, value in rope.items() if value is not None} - (layers & set(read))):
        raise ModelError(
            f"{place} in config.json has {min(others)[:40]!r}, which is no type of layer of a {model_type}"
        )


def _check_kind(config: Json, rope: Json, name: str, read: Collection[str]) -> None:
    kind, model_type = rope.get("rope_type", rope.get("type")), str(config["model_type"])
    if rope.get("type", kind) != kind:
        raise ModelError(f"rope_type and type of {name} in config.json name different angles; leave out one of them")
    if kind is None and name.startswith("rope_scaling"):
        raise ModelError(f"{name} in config.json has no rope_type, without which it would be passed over")
    if rope.get("factor") not in (None, 1) and kind in (None, "default"):
        raise ModelError(f"'factor' of {name} in config.json has no rope_type, so it would be passed over")
    if model_type.startswith("phi") and kind in _OLD_LONGROPE and kind in read:
        kind = "longrope"
    _check_part(model_type, rope, kind, read)
    kind = "default" if kind is None else kind
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ModelError(
            f"rope_type {str(kind)[:40]!r} of {name} in config.json is none that transformers computes for a "
            f"{model_type}; it has {', '.join(_KEYS)}, so no engine serves this model"
        )
    needed, others = _KEYS[kind]
    known = {*needed, *others, *read} | _OF_EVERY_KIND
    _check_keys(rope, f"rope_type {kind!r} of {name} in config.json", needed, known)


def _check_keys(rope: Json, words: str, needed: Collection[str], known: Collection[str]) -> None:
    said = {key: value for key, value in rope.items() if value is not None}
    for key in needed:
        if key not in said:
            raise ModelError(f"{words} needs {key!r}")
    for key in sorted(said):
        if key not in known:
            raise ModelError(
                f"{words} has {key[:40]!r}, which would be passed over; leave it out if it changes nothing"
            )
        if key not in _NO_NUMBERS and not _is_number(said[key], is_list=key in _LISTS):
            raise ModelError(f"{words} has a {key!r} that is no positive number{' or list of them' * (key in _LISTS)}")


def _is_number(value: object, *, is_list: bool) -> bool:
    if is_list:
        return isinstance(value, list) and bool(value) and all(_is_number(each, is_list=False) for each in value)
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _check_part(model_type: str, rope: Json, kind: object, read: Collection[str]) -> None:
    factor = rope.get("partial_rotary_factor")
    if factor not in (None, 1) and "partial_rotary_factor" not in read and kind != "proportional":
        raise ModelError(
            f"'partial_rotary_factor' among the angles in config.json is {factor!r}, and transformers' "
            f"{model_type} turns all numbers of a head; no engine serves this model"
        )


def _check_outside(config: Json, place: str) -> None:
    """Raises ModelError where a key is inside and outside of this object with two values: the inner one is taken."""
    rope = object_in(config, place)
    inner = [("partial_rotary_factor", rope.get("partial_rotary_factor")), ("rope_theta", rope.get("rope_theta"))]
    inner += [(key, object_in(rope, layers).get("rope_theta")) for key, layers in _THETAS.items()]
    for key, value in inner:
        if None not in (value, config.get(key)) and value != config[key]:
            raise ModelError(f"{key!r} differs inside and outside of {place} in config.json; leave out one")
