"""How an adapter describes an architecture: a Spec from the configuration, a Recipe for each of our tensors."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from transformers import PretrainedConfig

from engine.fused.checks import NotForFused
from engine.fused.model.spec import Spec


@dataclass(frozen=True, slots=True)
class Recipe:
    """One of our tensors."""

    parts: tuple[str, ...]  # names in the checkpoint, without the base model's prefix; joined along the first axis
    plus: float = 0.0  # added to each number: Gemma's files hold norms' weights minus one
    swaps_halves: bool = False  # each part's second half of rows goes before its first


Recipes = dict[str, Recipe]  # by our name, see engine.fused.model.spec; all that is to be read from the files
Layout = Callable[[Spec], Recipes]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One architecture, or several that differ in nothing but names."""

    spec: Callable[[PretrainedConfig], Spec]  # raises engine.types.ModelError where the fused engine can't be right
    layouts: tuple[Layout, ...]  # the first whose names are all in the checkpoint is taken
    prefixes: tuple[str, ...] = ()  # of the base model within a larger one: "bert.", "model.", …; "" is always tried
    # what is computed rather than read, such as angles: of the configuration, the tensors that were read (by our names)
    # and the number of positions; what it gives stands in for what was read under the same name, on any device
    derive: Callable[[PretrainedConfig, Mapping[str, Tensor], int], dict[str, Tensor]] | None = None


def affine(parts: Mapping[str, tuple[str, ...]], *, has_bias: bool = True) -> Recipes:
    """Linear layers and norms: our name to theirs, both without ".weight" and ".bias"."""
    kinds = ("weight", "bias") if has_bias else ("weight",)
    return {
        f"{ours}.{kind}": Recipe(tuple(f"{part}.{kind}" for part in theirs))
        for ours, theirs in parts.items()
        for kind in kinds
    }


def in_layers(spec: Spec, theirs: str, recipes: Recipes) -> Recipes:
    """Each layer's recipes out of those of one; `theirs` is what the checkpoint puts before them, {} their number."""
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
        raise NotForFused(f"the fused engine has no activation {name!r}")
    return activation


def require(config: PretrainedConfig, **allowed: tuple[object, ...]) -> None:
    """Check that each field, where it is set, has one of these values. Raises ModelError."""
    for name, values in allowed.items():
        value = getattr(config, name, None)
        if value is not None and value not in values:
            raise NotForFused(f"the fused engine does not compute {name} {value!r} of config.json")
