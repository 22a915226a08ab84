"""From a checkpoint to fused tensors in their dtypes on their device. Knows no architecture and no file format.

Each of our tensors is allocated once and its parts are copied into place, so a second copy of the model is never in
memory. Norms, angles and relative biases are float32; everything else has the compute dtype.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PretrainedConfig

from engine.fused.adapters.adapter import Adapter, Recipe, Recipes
from engine.fused.checkpoint.tensors import Checkpoint
from engine.fused.choices import NotForFused
from engine.fused.model.blocks import Weights
from engine.fused.model.linear import Linear, PlainLinear
from engine.fused.model.spec import Spec, shape_of
from engine.model.weights import check_read
from engine.types import ModelError

_LINEARS = frozenset(("qkv", "o", "gate_up", "down", "projection"))
_PLAIN = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))


class FusedWeights:
    """One model's weights: read whole or, as often as wanted, layer by layer."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        adapter: Adapter,
        config: PretrainedConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_positions: int,  # rows of tables of angles
    ) -> None:
        """Raises ModelError where the adapter does, and where tensors are missing."""
        self.spec = adapter.spec(config)
        self._checkpoint = checkpoint
        self._derive = adapter.derive
        self._config = config
        self._dtype = dtype
        self._device = device
        self._num_positions = num_positions
        self._prefix, self._recipes = _choose(adapter, self.spec, checkpoint.names)

    @property
    def linear_names(self) -> tuple[str, ...]:
        """ "layers.0.qkv", …"""
        return tuple(_stem(name) for name in self._recipes if _is_of_linear(name) and name.endswith(".weight"))

    def check(self) -> None:
        """Raises ModelError where `weights` does, but for what numbers say, and where a weight of the layers is read by
        nothing. Reads no numbers."""
        read = _parts_of(self._recipes)
        unread = sorted(self._checkpoint.names - read.keys())
        places = {name.removeprefix(self._prefix): self._checkpoint.place(name) for name in unread}
        parts = {name.removeprefix(self._prefix).partition(".")[0] for name in read}
        check_read(places, parts, architecture=self.spec.architecture)
        for name in self._recipes:
            self._made(name, self._checkpoint.on_meta, torch.device("meta"))

    def linear(self, name: str) -> PlainLinear:
        """One linear layer, read anew. Raises ModelError where a tensor is not what the configuration says."""
        has_bias = f"{name}.bias" in self._recipes
        return PlainLinear(self._read(f"{name}.weight"), self._read(f"{name}.bias") if has_bias else None)

    def weights(self) -> Weights:
        """Everything, read anew. Raises ModelError as `linear` does."""
        by_recipe: dict[Recipe, Tensor] = {}  # what layers share in the checkpoint, they share here
        read: dict[str, Tensor] = {}
        for name, recipe in self._recipes.items():
            if recipe not in by_recipe:
                by_recipe[recipe] = self._read(name)
            read[name] = by_recipe[recipe]
        linears: dict[str, Linear] = {
            name: PlainLinear(read[f"{name}.weight"], read.get(f"{name}.bias")) for name in self.linear_names
        }
        tensors = {name: tensor for name, tensor in read.items() if not _is_of_linear(name)}
        if self._derive is not None:
            tensors |= self._derive(self._config, tensors, self._num_positions)
        return Weights({name: tensor.to(self._device) for name, tensor in tensors.items()}, linears)

    def _read(self, name: str) -> Tensor:
        return self._made(name, self._checkpoint.read, self._device)

    def _made(self, name: str, read: Callable[[str], Tensor], device: torch.device) -> Tensor:
        recipe = self._recipes[name]
        parts = [part for theirs in recipe.parts for part in self._pieces(theirs, read(theirs), recipe)]
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        self._check_shapes(parts, shape_of(self.spec, name) or shape, recipe)
        dtype = torch.float32 if "norm" in name or name == "relative_bias" else self._dtype
        tensor = torch.empty(shape, dtype=dtype, device=device)
        end = 0
        for part in parts:
            start, end = end, end + len(part)
            tensor[start:end].copy_(part)
        return tensor.add_(recipe.plus) if recipe.plus else tensor

    def _pieces(self, theirs: str, tensor: Tensor, recipe: Recipe) -> list[Tensor]:
        """One of the checkpoint's tensors, in pieces in the order that is wanted."""
        if tensor.dtype not in _PLAIN or not tensor.dim():
            raise ModelError(
                f"the tensor {self._checkpoint.place(theirs)} is stored as {tensor.dtype}; only plain weights are "
                "read; take the model's plain weights"
            )
        return list(tensor.chunk(2))[::-1] if recipe.swaps_halves else [tensor]

    def _check_shapes(self, parts: list[Tensor], shape: tuple[int, ...], recipe: Recipe) -> None:
        """Raises ModelError where they don't make up a tensor of this shape."""
        if sum(map(len, parts)) != shape[0] or any(part.shape[1:] != shape[1:] for part in parts):
            found = " and ".join(str(list(part.shape)) for part in parts)
            joined = "" if len(parts) == 1 else " and what is joined to it"
            which = f"{self._checkpoint.place(recipe.parts[0])}{joined}"
            raise NotForFused(f"the tensor {which} has the shape {found}; config.json asks for {list(shape)}")


def _choose(adapter: Adapter, spec: Spec, names: frozenset[str]) -> tuple[str, Recipes]:
    """The first layout whose names are all there, under the prefix that the checkpoint has, and that prefix."""
    layouts = [layout(spec) for layout in adapter.layouts]
    prefixes = (*adapter.prefixes, "")
    prefixed = {prefix: [_prefixed(recipes, prefix) for recipes in layouts] for prefix in prefixes}
    fitting = (prefix for prefix in prefixes if any(names.issuperset(one["words"].parts) for one in prefixed[prefix]))
    prefix = next(fitting, prefixes[-1])
    candidates = prefixed[prefix]
    chosen = min(candidates, key=lambda recipes: len(_missing(recipes, names)))
    # A layout with biases that lacks one of them must not pass for the one without.
    richer = candidates[: candidates.index(chosen)]
    unread = [one for one in richer if not names.isdisjoint(_parts_of(one).keys() - _parts_of(chosen).keys())]
    lacking = [missing for recipes in (chosen, *unread) if (missing := _missing(recipes, names))]
    if lacking:
        raise NotForFused(f"the weights have no tensor {min(lacking, key=len)[0]!r}, which config.json asks for")
    return prefix, chosen


def _missing(recipes: Recipes, names: frozenset[str]) -> list[str]:
    return [name for name in _parts_of(recipes) if name not in names]


def _parts_of(recipes: Recipes) -> dict[str, None]:
    """In order, each once."""
    return dict.fromkeys(part for recipe in recipes.values() for part in recipe.parts)


def _prefixed(recipes: Recipes, prefix: str) -> Recipes:
    return {
        name: dataclasses.replace(recipe, parts=tuple(prefix + part for part in recipe.parts))
        for name, recipe in recipes.items()
    }


def _is_of_linear(name: str) -> bool:
    return _stem(name).rpartition(".")[2] in _LINEARS


def _stem(name: str) -> str:
    return name.rpartition(".")[0]
