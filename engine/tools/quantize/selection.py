"""Chooses the tensors that become FP8, by their names and sizes, and how config.json names the others.

The weights of the linear layers in a transformer's numbered layers become FP8. Embeddings, norms, heads, poolers and
routers stay plain, as in other checkpoints of this format. Weights that do not divide into whole blocks stay plain too,
because transformers neither quantizes them nor reads them as FP8. Opens no file.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.store.tensor_file import Described

BLOCK = 128  # rows and columns

_FLOATS = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
_OUTSIDE = frozenset(("lm_head", "score", "classifier", "pooler", "head", "v_head", "summary"))
# For classes that have such layers although the checkpoint has none.
_LAYERS_OUTSIDE = frozenset(("pooler.dense", "classifier.dense", "classifier.out_proj", "head.dense"))
_NOT_LINEAR = re.compile(r"embed|norm|router|^gate$|^shared_expert_gate$|relative_attention_bias")
# Engines join each of these groups into one matrix, so all of a group must be stored alike.
_JOINED = {
    name: group
    for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("query", "key", "value"), ("w1", "w3"))
    for name in group
}


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection among all tensors of a model."""

    quantized: frozenset[str]  # tensors
    not_converted: tuple[str, ...]  # modules, as "modules_to_not_convert" names them
    left_plain: tuple[str, ...]  # weights of linear layers that have no whole blocks, or are joined with such


def select(tensors: Mapping[str, Described]) -> Selection:
    """`tensors` by name."""
    linear = {name for name, tensor in tensors.items() if _is_linear(name, tensor)}
    plain = {name for name in linear if any(size % BLOCK or not size for size in tensors[name].shape)}
    quantized = frozenset(linear - plain - _joined_with(plain, linear))
    modules = {_module(name) for name in quantized}
    left = {spelling for name in tensors.keys() - quantized for spelling in _spellings(name, tensors[name])}
    named = sorted(
        name for name in left | _OUTSIDE | _LAYERS_OUTSIDE if not any(_is_matched(module, name) for module in modules)
    )
    return Selection(quantized, tuple(named), tuple(sorted(linear - quantized)))


def _is_linear(name: str, tensor: Described) -> bool:
    *path, kind = name.split(".")
    return (
        kind == "weight"
        and tensor.dtype in _FLOATS
        and len(tensor.shape) == 2
        and any(part.isdecimal() for part in path)
        and _OUTSIDE.isdisjoint(path)
        and not any(_NOT_LINEAR.search(part) for part in path)
    )


def _joined_with(plain: set[str], linear: set[str]) -> set[str]:
    """Weights that engines join with one that stays plain."""
    groups: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for name in linear:
        parent, _, own = _module(name).rpartition(".")
        if own in _JOINED:
            groups[parent, _JOINED[own]].add(name)
    return set().union(*(group for group in groups.values() if group & plain))


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _spellings(name: str, tensor: Described) -> set[str]:
    """Names of a plain matrix's module: in a class with a head around the bare model, and in the bare model."""
    if len(tensor.shape) < 2 or tensor.dtype not in _FLOATS:
        return set()
    module = _module(name)
    before, experts, _ = module.partition(".experts.")
    found = {module, before + experts[:-1]} if experts else {module}
    return found | {bare for each in found if (bare := _bare(each))}


def _bare(module: str) -> str | None:
    """Without the first part, where the rest still identifies one layer."""
    first, _, rest = module.partition(".")
    return rest if "." in rest and not rest.split(".")[0].isdecimal() and not first.isdecimal() else None


def _is_matched(module: str, name: str) -> bool:
    """Whether transformers matches `name` with this module: as its end, or as its first parts."""
    return module.endswith(name) or module == name or module.startswith(f"{name}.")
