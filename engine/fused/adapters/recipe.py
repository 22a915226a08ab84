"""The types of an adapter, which describes an architecture: a Spec, and a Recipe for each of our tensors."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from transformers import PretrainedConfig

from engine.fused.checks import NotForFused
from engine.fused.model.spec import Spec


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make one of our tensors from a checkpoint."""

    parts: tuple[str, ...]  # names in the checkpoint, without the base model's prefix; joined along the first axis
    plus: float = 0.0  # added to each number: Gemma's files hold norms' weights minus one
    swaps_halves: bool = False  # whether the second half of each part's rows comes before the first


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


def affine(parts: Mapping[str, tuple[str, ...]], *, has_bias: bool = True) -> Recipes:
    """Linear layers and norms: our name to theirs, both without ".weight" and ".bias"."""
    kinds = ("weight", "bias") if has_bias else ("weight",)
    return {
        f"{ours}.{kind}": Recipe(tuple(f"{part}.{kind}" for part in theirs))
        for ours, theirs in parts.items()
        for kind in kinds
    }


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
