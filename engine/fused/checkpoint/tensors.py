"""Tensors by the names that a checkpoint has for them: from safetensors files, or from a module. Knows no model."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.fused.checkpoint.readers import reader_for
from engine.model.json_files import object_in, read_object
from engine.types import ModelError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # of BERT's first days


class Checkpoint(Protocol):
    """Where weights come from."""

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        ...

    def read(self, name: str) -> Tensor:
        """One of them, in the dtype it is stored in; not to be written to. Raises ModelError."""
        ...


class SafetensorsCheckpoint:
    """A folder's model.safetensors, or the files that its index names. Each is opened at its first read."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Raises ModelError where a file is missing or is no such file."""
        self._reader = reader_for(device)
        self._places = {_today(stored): (stored, file) for stored, file in self._stored_names(folder)}

    @property
    def names(self) -> frozenset[str]:
        """See Checkpoint."""
        return frozenset(self._places)

    def read(self, name: str) -> Tensor:
        """See Checkpoint. On a CPU it is a view of the mapped file."""
        if name not in self._places:
            raise ModelError(f"the weights have no tensor {name!r}")
        stored, file = self._places[name]
        return self._reader.read(file, stored)

    def _stored_names(self, folder: Path) -> list[tuple[str, Path]]:
        if (folder / _SINGLE).is_file() or not (folder / _INDEX).is_file():
            return [(name, folder / _SINGLE) for name in self._reader.names(folder / _SINGLE)]
        places = object_in(read_object(folder / _INDEX), "weight_map")
        return [(name, folder / str(file)) for name, file in places.items()]


class ModuleCheckpoint:
    """What transformers has loaded, for checkpoints whose names or shapes it converts while it reads them."""

    def __init__(self, module: nn.Module) -> None:
        self._tensors: dict[str, Tensor] = {name: tensor.detach() for name, tensor in module.state_dict().items()}

    @property
    def names(self) -> frozenset[str]:
        """See Checkpoint."""
        return frozenset(self._tensors)

    def read(self, name: str) -> Tensor:
        """See Checkpoint."""
        if name not in self._tensors:
            raise ModelError(f"the weights have no tensor {name!r}")
        return self._tensors[name]


def _today(stored: str) -> str:
    """The name that transformers gives it."""
    for old, new in _OLD_ENDINGS.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored
