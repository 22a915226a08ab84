"""The parts that adapters share: the types that describe an architecture, and parts of their specs and tables of names.

It also makes the tables of angles by which queries and keys are rotated; their frequencies are transformers' own.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.fused.model.spec import LayerSpec, Spec
from engine.fused.offer import NotForFused


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make one of our tensors from a checkpoint."""

    parts: tuple[str, ...]  # names in the checkpoint, without the base model's prefix; joined along the first axis
    is_beside: bool = False  # whether the parts stand beside the base model, so that no prefix precedes their names
    plus: float = 0.0  # added to each number: Gemma's files hold norms' weights minus one
    swaps_halves: bool = False  # whether the second half of each part's rows comes before the first
    rows: tuple[int, ...] | None = None  # of each part, only these are kept, in this order; None = all


Recipes = dict[str, Recipe]  # by our name, see engine.fused.model.spec; all that is to be read from the files
Layout = Callable[[Spec], Recipes]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One architecture, or several that differ only in names."""

    spec: Callable[[PretrainedConfig], Spec]  # raises engine.types.ModelError if the fused engine can't compute it
    layouts: tuple[Layout, ...]  # the first layout with all its names in the checkpoint is used
    prefixes: tuple[str, ...] = ()  # of the base model in a larger one: "bert.", "model.", …; "" is always tried, too
    # computes tensors that are not read, such as angles, from the configuration, the tensors read (by our names) and
    # the number of positions; they replace tensors of the same name and may be on any device
    derive: Callable[[PretrainedConfig, Mapping[str, Tensor], int], dict[str, Tensor]] | None = None


def spec_of(config: PretrainedConfig, *, activation: str, **others: Any) -> Spec:
    """Make a spec from the fields that most configurations have. activation: transformers' name; others: further
    fields, and those that differ. Raises ModelError for an activation that the fused engine lacks.
    """
    num_heads = config.num_attention_heads
    head_dim = others.get("head_dim", config.hidden_size // num_heads)
    fields = {
        "architecture": config.model_type,
        "hidden_size": config.hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": head_dim,
        "intermediate_size": getattr(config, "intermediate_size", None),
        "vocab_size": config.vocab_size,
        "activation": activation_of(activation),
        "is_causal": False,
        "scaling": head_dim**-0.5,
        "layers": (LayerSpec(),) * config.num_hidden_layers,
    }
    return Spec(**{**fields, **others})


def affine(parts: Mapping[str, tuple[str, ...]], *, has_bias: bool = True) -> Recipes:
    """Linear layers and norms: our name to theirs, both without ".weight" and ".bias"."""
    kinds = ("weight", "bias") if has_bias else ("weight",)
    return {
        f"{ours}.{kind}": Recipe(tuple(f"{part}.{kind}" for part in theirs))
        for ours, theirs in parts.items()
        for kind in kinds
    }


def beside(recipes: Recipes) -> Recipes:
    """The same of parts that stand beside the base model."""
    return {name: dataclasses.replace(recipe, is_beside=True) for name, recipe in recipes.items()}


def in_layers(spec: Spec, theirs: str, recipes: Recipes) -> Recipes:
    """The recipes of all layers from those of one. theirs: the checkpoint's prefix, with {} for the layer's number."""
    return {
        f"layers.{number}.{name}": dataclasses.replace(
            recipe, parts=tuple(f"{theirs.format(number)}.{part}" for part in recipe.parts)
        )
        for number in range(len(spec.layers))
        for name, recipe in recipes.items()
    }


# transformers' names of activations, and ours (see engine.fused.model.spec)
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}


def activation_of(name: object) -> str:
    """Our name for an activation. Raises ModelError for one that the fused engine lacks."""
    activation = _ACTIVATIONS.get(str(name))
    if activation is None:
        raise NotForFused(f"the fused engine has no activation {name!r}, which config.json asks for")
    return activation


def require(config: PretrainedConfig, **allowed: tuple[object, ...]) -> None:
    """Raises ModelError if a field is set to a value that is not allowed."""
    for name, values in allowed.items():
        value = getattr(config, name, None)
        if value is not None and value not in values:
            raise NotForFused(f"the fused engine does not compute {name} {value!r} of config.json")


_LAYER_TYPES = frozenset(("full_attention", "sliding_attention"))


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
        check_rope(config, layer_type=kind)
    pairs = zip(_types_of(config), windows_of(config, window), strict=True)
    return tuple(LayerSpec(window=of_layer, rope=tables.index(kind)) for kind, of_layer in pairs)


def derive_angles(config: PretrainedConfig, tensors: Mapping[str, Tensor], num_positions: int) -> dict[str, Tensor]:
    """The table of angles of a model that has one."""
    return {"rope.0": angles(config, num_positions=num_positions)}


def derive_by_type(config: PretrainedConfig, tensors: Mapping[str, Tensor], num_positions: int) -> dict[str, Tensor]:
    """The tables of angles, numbered as in `layers_by_type`."""
    return {
        f"rope.{number}": angles(config, num_positions=num_positions, layer_type=kind)
        for number, kind in enumerate(_tables(config))
    }


def _types_of(config: PretrainedConfig) -> list[str]:
    kinds = [str(kind) for kind in config.layer_types]
    unknown = sorted(set(kinds) - _LAYER_TYPES)
    if unknown:
        raise NotForFused(f"the fused engine has no layers of type {unknown[0]!r}")
    if len(kinds) != config.num_hidden_layers:
        raise NotForFused("the number of layer_types in config.json differs from num_hidden_layers")
    return kinds


def _tables(config: PretrainedConfig) -> list[str]:
    return sorted(set(_types_of(config)))


# Beyond this many positions, one long sequence changes the frequencies for all that are in its batch.
_LIMITS = {"dynamic": "max_position_embeddings", "longrope": "original_max_position_embeddings"}


def angles(config: PretrainedConfig, *, num_positions: int, layer_type: str | None = None) -> Tensor:
    """float32 [num_positions, rotated], as `Ops.rotate` takes them: cosines of rotated / 2 angles, then their sines.

    Both are multiplied by the factor that some kinds of scaling (YaRN, LongRoPE) have for attention. layer_type: for
    architectures with `rope_parameters` for each type of layer. Raises ModelError for a kind of scaling that is
    unknown or incomplete, and where its frequencies would depend on the lengths in a batch.
    """
    parameters = _parameters(config, layer_type)
    _check_length(config, parameters, num_positions)
    frequencies, factor = _frequencies(config, parameters, layer_type)
    # transformers multiplies in float32. The last bits of large angles are wrong, but models were trained with them.
    turned = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    return torch.cat((turned.cos(), turned.sin()), dim=1) * factor


def check_rope(config: PretrainedConfig, *, layer_type: str | None = None) -> None:
    """Raises ModelError where `angles` would for any number of positions."""
    angles(config, num_positions=1, layer_type=layer_type)


def _parameters(config: PretrainedConfig, layer_type: str | None) -> dict[str, Any]:
    parameters = getattr(config, "rope_parameters", None)
    if parameters and layer_type is not None:
        parameters = parameters.get(layer_type)
    if not parameters or "rope_type" not in parameters:
        raise NotForFused("config.json has no rope_parameters, or none for a layer's type")
    return dict(parameters)


def _check_length(config: PretrainedConfig, parameters: dict[str, Any], num_positions: int) -> None:
    kind = str(parameters["rope_type"])
    name = _LIMITS.get(kind)
    if name is None:
        return
    limit = parameters.get(name, getattr(config, name, None))
    if limit is not None and num_positions > limit:
        raise NotForFused(f"the fused engine computes rope_type {kind!r} for up to {limit} tokens, not {num_positions}")


def _frequencies(config: PretrainedConfig, parameters: dict[str, Any], layer_type: str | None) -> tuple[Tensor, float]:
    """float32 [rotated / 2], by which positions are multiplied, and the factor for attention."""
    kind = str(parameters["rope_type"])
    if kind != "default" and kind not in ROPE_INIT_FUNCTIONS:
        raise NotForFused(f"the fused engine has no rope_type {kind!r}, which config.json asks for")
    try:
        if kind == "default":
            return _unscaled(config, parameters), 1.0
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), layer_type=layer_type)
    except KeyError as error:
        raise NotForFused(f"rope_parameters of config.json lack {error.args[0]!r} for rope_type {kind!r}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise NotForFused(f"rope_parameters of config.json have a value that rope_type {kind!r} can't have") from error
    return frequencies.float(), float(factor)


def _unscaled(config: PretrainedConfig, parameters: dict[str, Any]) -> Tensor:
    """RoFormer (Su et al., 2021): theta ** (-2 i / rotated)."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotated = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
    frequencies: Tensor = 1.0 / (parameters["rope_theta"] ** exponents)
    return frequencies
