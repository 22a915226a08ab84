"""Tensors by the names that a checkpoint has for them: from safetensors files, or from a module. Knows no model."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.fused.checkpoint.readers import reader_for
from engine.model.weights import StoredTensor, tensors_in
from engine.store import tensor_file
from engine.types import ModelError

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

    def on_meta(self, name: str) -> Tensor:
        """Like `read`, on the meta device and without reading a number. Raises ModelError."""
        ...

    def place(self, name: str) -> str:
        """The tensor's name and file, for messages."""
        ...


class SafetensorsCheckpoint:
    """A folder's model.safetensors, or the files that its index names. Each is opened at its first read."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Raises ModelError where a file is missing or is no such file, and where two tensors have the same name."""
        self._reader = reader_for(device)
        self._stored: dict[str, StoredTensor] = {}
        for name, tensor in tensors_in(folder).items():
            first = self._stored.setdefault(_today(name), tensor)
            if first is not tensor:
                raise ModelError(f"the weights {first} and {tensor} are both read as {_today(name)!r}; leave out one")

    @property
    def names(self) -> frozenset[str]:
        """See Checkpoint."""
        return frozenset(self._stored)

    def read(self, name: str) -> Tensor:
        """See Checkpoint. On a CPU it is a view of the mapped file."""
        stored = self._find(name)
        return self._reader.read(stored.file, stored.name)

    def on_meta(self, name: str) -> Tensor:
        """See Checkpoint."""
        return tensor_file.on_meta(self._find(name))

    def place(self, name: str) -> str:
        """See Checkpoint."""
        return str(self._find(name))

    def _find(self, name: str) -> StoredTensor:
        if name not in self._stored:
            raise ModelError(f"the weights have no tensor {name!r}")
        return self._stored[name]


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

    def on_meta(self, name: str) -> Tensor:
        """See Checkpoint."""
        return self.read(name).to("meta")

    def place(self, name: str) -> str:
        """See Checkpoint."""
        return repr(name)


def _today(stored: str) -> str:
    """The name that transformers gives it."""
    for old, new in _OLD_ENDINGS.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored
