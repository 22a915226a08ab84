"""Tensors into safetensors files: none shares memory with another, each is contiguous, large sets are split."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

_INDENT = 2
_READ_WRITE = 0o666


def num_bytes(tensors: dict[str, torch.Tensor]) -> int:
    """As they will lie in files, tied ones counted each."""
    return sum(_size(tensor) for tensor in tensors.values())


def write(tensors: dict[str, torch.Tensor], stem: Path, *, max_shard_bytes: int) -> list[str]:
    """Write <stem>.safetensors or, where that would be larger, shards and their index; the files' names.

    dtypes stay as they are. Formats: https://huggingface.co/docs/safetensors, and for the index that of transformers.
    """
    shards = list(_split(_apart(tensors), max_shard_bytes))
    if len(shards) == 1:
        _save(shards[0], stem, ".safetensors")
        return [f"{stem.name}.safetensors"]
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        ending = f"-{number:05}-of-{len(shards):05}.safetensors"
        _save(shard, stem, ending)
        weight_map |= dict.fromkeys(shard, stem.name + ending)
    index = {"metadata": {"total_size": num_bytes(tensors)}, "weight_map": weight_map}
    index_name = f"{stem.name}.safetensors.index.json"
    stem.with_name(index_name).write_text(json.dumps(index, indent=_INDENT))
    return [*dict.fromkeys(weight_map.values()), index_name]


def _apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tied tensors become equal ones: safetensors has no word for two names of one, and which of them a model's class
    can do without is its own business."""
    storages: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone(memory_format=torch.contiguous_format) if storage in storages else tensor
        storages.add(storage)
    return apart


def _split(tensors: dict[str, torch.Tensor], max_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """In their order; a tensor that is too large has a shard to itself."""
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + _size(tensor) > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += _size(tensor)
    yield shard


def _save(shard: dict[str, torch.Tensor], stem: Path, ending: str) -> None:
    contiguous = {name: tensor.contiguous() for name, tensor in shard.items()}
    file = stem.with_name(stem.name + ending)
    save_file(contiguous, file, metadata={"format": "pt"})
    file.chmod(file.parent.stat().st_mode & _READ_WRITE)  # the library has it for this user alone


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
