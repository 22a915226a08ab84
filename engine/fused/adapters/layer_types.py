"""Differences between layers: windows, and tables of angles if each type of layer has its own."""

import dataclasses
from collections.abc import Mapping, Sequence

from torch import Tensor
from transformers import PretrainedConfig

from engine.fused.checks import NotForFused
from engine.fused.model.rotary import angles, check
from engine.fused.model.spec import LayerSpec, Spec

_TYPES = frozenset(("full_attention", "sliding_attention"))


def windows_of(config: PretrainedConfig, window: int | None) -> list[int | None]:
    """Each layer's window, from `layer_types`. Raises ModelError for types other than full and sliding."""
    if not window and "sliding_attention" in _types_of(config):
        raise NotForFused("layer_types in config.json has windows, and no sliding_window says how long they are")
    return [window if kind == "sliding_attention" else None for kind in _types_of(config)]


def with_windows(spec: Spec, windows: Sequence[int | None]) -> Spec:
    """The spec with these windows. Raises ModelError for windows without causality."""
    if not spec.is_causal and any(windows):
        # transformers' masks include one token more at each side than its flash attention.
        raise NotForFused(f"the fused engine does not compute sliding_window for a bidirectional {spec.architecture}")
    pairs = zip(spec.layers, windows, strict=True)
    return dataclasses.replace(spec, layers=tuple(dataclasses.replace(layer, window=window) for layer, window in pairs))


def layers_by_type(config: PretrainedConfig, window: int | None) -> tuple[LayerSpec, ...]:
    """Layers with the windows and angles of their types. Raises ModelError like `windows_of` and `angles`."""
    tables = _tables(config)
    for kind in tables:
        check(config, layer_type=kind)
    pairs = zip(_types_of(config), windows_of(config, window), strict=True)
    return tuple(LayerSpec(window=of_layer, rope=tables.index(kind)) for kind, of_layer in pairs)


def derive_by_type(config: PretrainedConfig, tensors: Mapping[str, Tensor], num_positions: int) -> dict[str, Tensor]:
    """The tables of angles, numbered as in `layers_by_type`."""
    return {
        f"rope.{number}": angles(config, num_positions=num_positions, layer_type=kind)
        for number, kind in enumerate(_tables(config))
    }


def _types_of(config: PretrainedConfig) -> list[str]:
    kinds = [str(kind) for kind in config.layer_types]
    unknown = sorted(set(kinds) - _TYPES)
    if unknown:
        raise NotForFused(f"the fused engine has no layers of type {unknown[0]!r}")
    if len(kinds) != config.num_hidden_layers:
        raise NotForFused("the number of layer_types in config.json differs from num_hidden_layers")
    return kinds


def _tables(config: PretrainedConfig) -> list[str]:
    return sorted(set(_types_of(config)))
