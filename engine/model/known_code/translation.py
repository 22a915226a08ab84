"""Turns config.json from the words of its own code into those of the architecture that serves it."""

from collections.abc import Collection, Iterator

from engine.model.json_files import Json, object_in
from engine.model.known_code.known_code import COMMON, POOLS_TEXT_ALONE, USUAL, KnownCode
from engine.model.known_code.trust import TRUST, check_trusted
from engine.types import ModelError

_WITHOUT_CODE = frozenset(("auto_map", "architectures", "model_type"))


def translated(code: KnownCode, config: Json, trusted: Collection[str] = ()) -> Json:
    """config.json as the architecture is to read it. trusted: keys that are passed over, which would be refused.

    Raises ModelError with the key that would change rows.
    """
    refusals = dict(_refusals(code, config))
    check_trusted(config, trusted, refusals)
    for key, why in refusals.items():
        if key not in trusted:
            raise ModelError(why)
    said = _with_defaults(code, {key: value for key, value in config.items() if key not in trusted})
    own = {key: said[key] for key in said.keys() & (COMMON | code.same) - _WITHOUT_CODE}
    for key, other in code.renamed.items():
        if key in said:
            own = _put(own, other, said[key], key=key)
    names = [code.classes.get(name, name) for name in config.get("architectures") or ()]
    own = {**own, "model_type": code.architecture, "architectures": names}
    if code.pools_text_alone:
        own = {**own, POOLS_TEXT_ALONE: True}
    return code.translate(said, own) if code.translate else own


def _refusals(code: KnownCode, config: Json) -> Iterator[tuple[str, str]]:
    """Keys that the architecture does not compute, and why each is refused."""
    for key in sorted(config.keys() - code.keys):
        yield (
            key,
            f"{key!r} in config.json may change rows: it is none of the keys that are known of the model's own code "
            f"({code.source}), which is never run; if it changes nothing, say so by {TRUST} {key}",
        )
    said = _with_defaults(code, config)
    for key, computed in {**USUAL, **code.fixed}.items():
        if said.get(key) not in (None, *computed):
            yield (
                key,
                f"{key!r} in config.json is {said[key]!r}, which only the model's own code computes; it is never run, "
                f"and {code.architecture!r} computes {' or '.join(map(repr, computed)) or 'without it'}",
            )


def _with_defaults(code: KnownCode, config: Json) -> Json:
    """config.json without empty keys, and what the code takes where it is silent."""
    said = {key: value for key, value in config.items() if value is not None}
    left_out = {key: value for key, value in code.defaults.items() if code.renamed.get(key) not in said}
    return {**left_out, **said}


def _put(config: Json, name: str, value: object, *, key: str) -> Json:
    """config with the value under `name`, where a dot leads into an object."""
    place, _, last = name.rpartition(".")
    inner = object_in(config, place) if place else config
    if inner.get(last, value) != value:
        raise ModelError(f"{key!r} and {name!r} in config.json mean the same and differ")
    inner = {**inner, last: value}
    return {**config, place: inner} if place else inner
