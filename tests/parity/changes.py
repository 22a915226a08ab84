"""Changes of a model's folder that turn one of its features off, its weights otherwise the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
Change = Callable[[dict[str, Any], Tensors], None]  # of what config.json holds, and of the weights, both in place

_POSITIONS = "position_embeddings.weight"
_RELATIVE = "relative_attention_bias.weight"


def changed(folder: Path, target: Path, change: Change) -> Path:
    """A copy of a model's folder after this change."""
    shutil.copytree(folder, target)
    settings = json.loads((target / "config.json").read_text())
    tensors = load_file(target / "model.safetensors")
    change(settings, tensors)
    (target / "config.json").write_text(json.dumps(settings))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    return target


def config(**others: Any) -> Change:
    """Other settings in config.json."""

    def change(settings: dict[str, Any], _tensors: Tensors) -> None:
        settings |= others

    return change


def shifted_positions(_settings: dict[str, Any], tensors: Tensors) -> None:
    """The positions of a model that does not take their offset from its configuration are numbered one earlier."""
    (name,) = (name for name in tensors if name.endswith(_POSITIONS))
    tensors[name] = tensors[name].roll(1, dims=0)


def without_distances(settings: dict[str, Any], tensors: Tensors) -> None:
    """DeBERTa without its table of distances."""
    settings["relative_attention"] = False
    for name in [name for name in tensors if "rel_embeddings" in name]:
        del tensors[name]


def without_relative_positions(_settings: dict[str, Any], tensors: Tensors) -> None:
    """The scores of attention get no bias for the distance."""
    (name,) = (name for name in tensors if name.endswith(_RELATIVE))
    tensors[name] = torch.zeros_like(tensors[name])


def with_a_key_for_each_query(settings: dict[str, Any], tensors: Tensors) -> None:
    """Grouped-query attention written out: each key and value head as often as there are query heads that use it.

    Changes nothing of the rows.
    """
    _with_heads(settings, tensors, lambda heads, groups: heads.repeat_interleave(groups, dim=0))


def without_group_order(settings: dict[str, Any], tensors: Tensors) -> None:
    """The same, but each query head uses the keys and values of another group."""
    _with_heads(settings, tensors, lambda heads, groups: heads.flip(0).repeat_interleave(groups, dim=0))


def _with_heads(settings: dict[str, Any], tensors: Tensors, spread: Callable[[Tensor, int], Tensor]) -> None:
    num_heads, num_keys = settings["num_attention_heads"], settings["num_key_value_heads"]
    size = settings.get("head_dim") or settings["hidden_size"] // num_heads

    def spread_out(tensor: Tensor) -> Tensor:
        heads = tensor.view(num_keys, size, *tensor.shape[1:])
        return spread(heads, num_heads // num_keys).flatten(0, 1)

    for name, tensor in tensors.items():
        if (".k_proj." in name or ".v_proj." in name) and len(tensor) == num_keys * size:  # some layers have others
            tensors[name] = spread_out(tensor)
        elif ".qkv_proj." in name:
            query, key, value = torch.split(tensor, [num_heads * size, num_keys * size, num_keys * size])
            tensors[name] = torch.cat((query, spread_out(key), spread_out(value)))
    settings["num_key_value_heads"] = num_heads
