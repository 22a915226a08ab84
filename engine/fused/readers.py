"""Reads tensors from safetensors files onto a device: mapped for the CPU, staged for a GPU. Knows no model.

A GPU copies from pinned memory by itself and at the full rate of the bus; from a mapped file the processor copies for
it, page by page. So several threads read a file into one of two pinned buffers while the other one is copied to the
device. Files are read through the page cache, so a second start finds them there. One thread copies about 5 to 10 GB a
second out of it and the bus takes 25 to 55, hence several threads.
"""

import concurrent.futures
import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.store import tensor_file
from engine.store.tensor_file import ByteRange, bytes_of
from engine.types import ModelError

_BUFFER_BYTES = 32 << 20
_SLICE_BYTES = 4 << 20  # what a thread reads at least; less is not worth handing over
_NUM_THREADS = 4
_NUM_BUFFERS = 2


class CudaTransfer:
    """The way from the host to a device. Copies in the order of its current stream, so whatever comes after sees them
    done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def buffer(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes] in memory that `start` copies from."""
        with torch.cuda.device(self._device):  # or pinning memory would open the first GPU
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def start(self, source: Tensor, target: Tensor) -> Callable[[], None]:
        """Begin to copy; both are uint8 of one size. What it gives waits until `source` may be written to again."""
        with torch.cuda.device(self._device):
            target.copy_(source, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        synchronize: Callable[[], None] = copied.synchronize
        return synchronize


class Staging:
    """One way, one file at a time. Not for several threads."""

    def __init__(
        self,
        transfer: CudaTransfer,
        *,
        buffer_bytes: int = _BUFFER_BYTES,
        slice_bytes: int = _SLICE_BYTES,
        num_threads: int = _NUM_THREADS,
    ) -> None:
        self._transfer = transfer
        self._buffer_bytes = buffer_bytes
        self._slice_bytes = slice_bytes
        self._turns = itertools.cycle([_Buffer(transfer.buffer(buffer_bytes)) for _ in range(_NUM_BUFFERS)])
        self._threads = concurrent.futures.ThreadPoolExecutor(num_threads)  # they end with this object

    def copy(self, file: Path, begin: int, target: Tensor) -> None:
        """Begin to fill a contiguous tensor with the file's bytes from `begin` on, all of which are read when this
        returns. Raises OSError where the file can't be read or ends early."""
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for piece in torch.split(bytes_of(target), self._buffer_bytes):
                buffer = next(self._turns)
                buffer.wait()
                self._read(opened, buffer.memory[: len(piece)], begin)
                buffer.wait = self._transfer.start(buffer.memory[: len(piece)], piece)
                begin += len(piece)
        finally:
            os.close(opened)

    def _read(self, file: int, memory: Tensor, offset: int) -> None:
        content = memory.numpy().data
        slices = [
            (content[begin : begin + self._slice_bytes], offset + begin)
            for begin in range(0, len(content), self._slice_bytes)
        ]
        if len(slices) == 1:
            _read_all(file, *slices[0])
        else:
            readings = [self._threads.submit(_read_all, file, *part) for part in slices]
            concurrent.futures.wait(readings)  # all of them, also where one fails: the file is closed then
            for reading in readings:
                reading.result()


@dataclass(slots=True)
class _Buffer:
    memory: Tensor
    wait: Callable[[], None] = lambda: None  # until it may be written to


def _read_all(file: int, memory: memoryview, offset: int) -> None:
    while memory:
        num_read = os.preadv(file, [memory], offset)
        if not num_read:
            raise OSError("the file ends early")
        memory, offset = memory[num_read:], offset + num_read


class Reader(Protocol):
    """Opens each file at its first use."""

    def names(self, file: Path) -> Iterable[str]:
        """The names of its tensors. Raises ModelError if there is no such file."""

    def read(self, file: Path, name: str) -> Tensor:
        """One of them, in the dtype it is stored in; not to be written to. Raises ModelError."""


def reader_for(device: torch.device) -> Reader:
    """The one that is fast there."""
    return MappedReader() if device.type == "cpu" else StagedReader(device, CudaTransfer(device))


class MappedReader:
    """See Reader. Tensors are views of the file, which is mapped into memory."""

    def __init__(self) -> None:
        self._opened: dict[Path, Any] = {}

    def names(self, file: Path) -> Iterable[str]:
        names: list[str] = self._open(file).keys()
        return names

    def read(self, file: Path, name: str) -> Tensor:
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
                raise _not_safetensors(file) from error
        return self._opened[file]


class StagedReader:
    """See Reader. Tensors are new ones on the device; what follows on the current stream sees them filled."""

    def __init__(self, device: torch.device, transfer: CudaTransfer) -> None:
        self._device = device
        self._staging = Staging(transfer)
        self._places: dict[Path, dict[str, ByteRange]] = {}

    def names(self, file: Path) -> Iterable[str]:
        return self._in(file)

    def read(self, file: Path, name: str) -> Tensor:
        place = self._in(file).get(name)
        if place is None:
            raise _lacks(file, name)
        tensor = torch.empty(place.shape, dtype=place.dtype, device=self._device)
        try:
            self._staging.copy(file, place.begin, tensor)
        except OSError as error:
            raise ModelError(f"{file} can't be read: {error.strerror or error}") from error
        return tensor

    def _in(self, file: Path) -> dict[str, ByteRange]:
        if file not in self._places:
            try:
                self._places[file] = tensor_file.byte_ranges(file)
            except (OSError, ValueError, TypeError, RecursionError) as error:
                raise _not_safetensors(file) from error
        return self._places[file]


def _not_safetensors(file: Path) -> ModelError:
    return ModelError(f"{file} can't be read as a safetensors file")


def _lacks(file: Path, name: str) -> ModelError:
    return ModelError(f"{file} can't be read: it lacks the tensor {name!r}, or is damaged")
