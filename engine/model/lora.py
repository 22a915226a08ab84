"""Adapters that lie in folders of their own beside a model's weights, one for each task, as PEFT writes them.

`adapters/TASK/adapter_config.json` says how they were made, and `adapter_model.safetensors` holds two thin matrices for
each linear layer that they change: A [rank, in] and B [out, rank] (Hu et al. 2021, arXiv 2106.09685). PEFT adds
B A lora_alpha / rank to the layer's weight. What it can do besides is refused by the key that asks for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.json_files import needed_number, read_object
from engine.model.weights import StoredTensor, stored_tensors
from engine.types import ModelError

_FOLDER, _CONFIG, _WEIGHTS = "adapters", "adapter_config.json", "adapter_model.safetensors"
_PREFIXES = ("base_model.model.", "model.")  # PEFT's, and that of a class around the layers
# Keys with which PEFT computes something else, or only in training, and the values without effect.
_USUAL: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None,),
    "layer_replication": (None,),
    "alpha_pattern": (None, {}),
    "rank_pattern": (None, {}),
    # the others take something out of the model's own weights first, or are no product of two matrices (PEFT 0.21)
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(("use_dora", "use_rslora", "lora_bias", "fan_in_fan_out", "use_qalora"), (None, False)),
    **dict.fromkeys(("alora_invocation_tokens", "target_parameters", "use_bdlora"), (None,)),
    **dict.fromkeys(("arrow_config", "kasa_config", "monteclora_config"), (None,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The adapter of a task."""

    rank: int
    scale: float  # by which its product is multiplied
    tensors: Mapping[str, tuple[StoredTensor, StoredTensor]]  # A and B by the layer's name: layers.0.mlp.up_proj


def adapter_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The weights files of these adapters. folder: of the model's own weights."""
    return [folder / _FOLDER / name / _WEIGHTS for name in names]


def read_adapters(folder: Path, names: Sequence[str]) -> list[Adapter]:
    """The adapters of these names, without their numbers. Raises ModelError, also where they are not all alike."""
    found = [_read(file) for file in adapter_files(folder, names)]
    for name, adapter in zip(names, found, strict=True):
        if (adapter.rank, adapter.tensors.keys()) != (found[0].rank, found[0].tensors.keys()):
            raise ModelError(f"the adapters {names[0]!r} and {name!r} in {folder} differ in rank, or in their layers")
    return found


def _read(file: Path) -> Adapter:
    where = file.with_name(_CONFIG)
    if not where.is_file() or not file.is_file():
        missing = where if not where.is_file() else file
        raise ModelError(f"{missing} is missing, and config.json names its adapter; fetch the model's files again")
    config = read_object(where)
    for key, values in _USUAL.items():
        if config.get(key) not in values and (key in config or None not in values):
            raise ModelError(f"{key!r} in {where} is {config.get(key)!r}, which is not computed here")
    rank, alpha = needed_number(config, "r", file=str(where)), config.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise ModelError(f"'lora_alpha' in {where} is no number")
    return Adapter(rank=rank, scale=alpha / rank, tensors=_pairs(file, rank))


def _pairs(file: Path, rank: int) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    by_layer: dict[str, dict[str, StoredTensor]] = {}
    for tensor in stored_tensors(file):
        name = tensor.name
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        layer, _, kind = name.rpartition(".lora_")
        if kind not in ("A.weight", "B.weight") or len(tensor.shape) != 2:
            raise ModelError(f"{tensor} is no part of an adapter that is computed here")
        by_layer.setdefault(layer, {})[kind[0]] = tensor
    for layer, parts in by_layer.items():
        if parts.keys() != {"A", "B"} or not parts["A"].shape[0] == parts["B"].shape[1] == rank:
            raise ModelError(f"the adapter of {layer!r} in {file} is not a pair of matrices of rank {rank}")
    return {layer: (parts["A"], parts["B"]) for layer, parts in by_layer.items()}


def check_layers(adapters: Sequence[Adapter], shapes: Mapping[str, tuple[int, int]], folder: Path) -> None:
    """Raises ModelError for an adapter of a layer that the model lacks, or that has another size. shapes: [out, in] by
    the layer's name."""
    for adapter in adapters:
        for layer, (a, b) in adapter.tensors.items():
            made: Any = (b.shape[0], a.shape[1])
            if shapes.get(layer) != made:
                raise ModelError(f"{a} is of a layer of the shape {list(made)}, which the model in {folder} lacks")
