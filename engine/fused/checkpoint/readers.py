"""Reads tensors from safetensors files onto a device: mapped for the CPU, staged for a GPU. Knows no model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.fused.checkpoint.staging import CudaTransfer, FileRange, Staging, Transfer
from engine.store import tensor_file
from engine.store.tensor_file import Place
from engine.types import ModelError


class Reader(Protocol):
    """Opens each file at its first use."""

    def names(self, file: Path) -> Iterable[str]:
        """The names of its tensors. Raises ModelError if there is no such file."""
        ...

    def read(self, file: Path, name: str) -> Tensor:
        """One of them, in the dtype it is stored in; not to be written to. Raises ModelError."""
        ...


def reader_for(device: torch.device) -> Reader:
    """The one that is fast there."""
    return MappedReader() if device.type == "cpu" else StagedReader(device, CudaTransfer(device))


class MappedReader:
    """Tensors are views of the file, which is mapped into memory."""

    def __init__(self) -> None:
        self._opened: dict[Path, Any] = {}

    def names(self, file: Path) -> Iterable[str]:
        """See Reader."""
        names: list[str] = self._open(file).keys()
        return names

    def read(self, file: Path, name: str) -> Tensor:
        """See Reader."""
        try:
            tensor: Tensor = self._open(file).get_tensor(name)
        except SafetensorError as error:
            raise _lacks(file, name) from error
        return tensor

    def _open(self, file: Path) -> Any:
        if file not in self._opened:
            try:
                self._opened[file] = safe_open(file, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise _no_such_file(file) from error
        return self._opened[file]


class StagedReader:
    """Tensors are new ones on the device; those on the current stream that follow see them filled."""

    def __init__(self, device: torch.device, transfer: Transfer) -> None:
        self._device = device
        self._staging = Staging(transfer)
        self._places: dict[Path, dict[str, Place]] = {}

    def names(self, file: Path) -> Iterable[str]:
        """See Reader."""
        return self._in(file)

    def read(self, file: Path, name: str) -> Tensor:
        """See Reader."""
        place = self._in(file).get(name)
        if place is None:
            raise _lacks(file, name)
        tensor = torch.empty(place.shape, dtype=place.dtype, device=self._device)
        try:
            self._staging.copy(FileRange(file, place.begin, place.num_bytes), tensor)
        except OSError as error:
            raise ModelError(f"{file} can't be read: {error.strerror or error}") from error
        return tensor

    def _in(self, file: Path) -> dict[str, Place]:
        if file not in self._places:
            try:
                self._places[file] = tensor_file.places(file)
            except (OSError, ValueError, TypeError, RecursionError) as error:
                raise _no_such_file(file) from error
        return self._places[file]


def _no_such_file(file: Path) -> ModelError:
    return ModelError(f"{file} can't be read as a safetensors file")


def _lacks(file: Path, name: str) -> ModelError:
    return ModelError(f"{file} can't be read: it lacks the tensor {name!r}, or is damaged")
