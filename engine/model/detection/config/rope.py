"""Checks what config.json says of the angles by which queries and keys are turned (RoPE).

transformers passes over what it does not know among them, or ends in a KeyError while it makes the model. Older files
have rope_scaling and a base outside of it. Newer ones have rope_parameters, some with an object for each type of layer.
"""

from collections.abc import Collection, Iterator, Mapping

from engine.model.detection import library
from engine.model.json_files import Json, object_in
from engine.types import ModelError

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
