"""What a model's modules and configurations hold, so that no run depends on those before it.

Some classes keep something between runs: BigBird turns its sparse attention off for good after one short sequence, and
dynamic rotary angles stay those of the longest sequence so far.
"""

from typing import Any

from torch import nn
from transformers import PretrainedConfig

_ABSENT = object()
_PLAIN = (bool, int, float, str, bytes, set, frozenset, type(None))
# What torch holds in modules beside their content, and what transformers has warned of.
_PASSED_OVER = (nn.Module().__dict__.keys() - {"_parameters", "_buffers", "_modules"}) | {"warnings_issued"}
_LONG_ROPE = "long_inv_freq"  # ends the names of tables that are made at the first run and never change


class State:
    """What is held when this is made."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        configs = {id(each): each for module in modules for each in _configs(vars(module).values())}
        self._kept = [(holder, _copied(vars(holder))) for holder in (*modules, *configs.values())]

    def restore(self) -> bool:
        """Put back what has changed since, and say whether anything had. Not what was written into a tensor."""
        return any([_restore(vars(holder), kept) for holder, kept in self._kept])

    def __call__(self, *_: Any) -> None:
        """As a hook before each forward."""
        self.restore()


def _configs(values: Any) -> list[PretrainedConfig]:
    found = [value for value in values if isinstance(value, PretrainedConfig)]
    return [*found, *(inner for config in found for inner in _configs(vars(config).values()))]


def _copied(held: dict[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in held.items() if _counts(name)}


def _counts(name: str) -> bool:
    return name not in _PASSED_OVER and not name.endswith(_LONG_ROPE)


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list | set) else value


def _restore(held: dict[str, Any], kept: dict[str, Any]) -> bool:
    differing = [name for name in held.keys() | kept.keys() if held.get(name, _ABSENT) is not kept.get(name, _ABSENT)]
    counting = filter(_counts, differing)
    changed = [name for name in counting if not _is_same(held.get(name, _ABSENT), kept.get(name, _ABSENT))]
    for name in changed:
        if name not in kept:
            del held[name]
        elif isinstance(kept[name], dict) and isinstance(held.get(name), dict):
            held[name].clear()  # the same object, to which others may refer
            held[name].update(kept[name])
        else:
            held[name] = _copy(kept[name])
    return bool(changed)


def _is_same(value: Any, kept: Any) -> bool:
    if isinstance(value, dict) and isinstance(kept, dict):
        return value.keys() == kept.keys() and all(_is_same(value[key], kept[key]) for key in value)
    if isinstance(value, list | tuple) and type(value) is type(kept):
        return len(value) == len(kept) and all(map(_is_same, value, kept))
    return value is kept or (isinstance(value, _PLAIN) and type(value) is type(kept) and value == kept)
