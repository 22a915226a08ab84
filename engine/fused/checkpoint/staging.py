"""Copies bytes from files to GPU memory: several threads read a file into one of two pinned buffers while the other
one is copied to the device. Knows no tensors' names or formats.

A GPU copies from pinned memory by itself and at the full rate of the bus; from a mapped file the processor copies for
it, page by page. Files are read through the page cache, so a second start finds them there. One thread copies about 5
to 10 GB a second out of it and the bus takes 25 to 55, hence several threads.
"""

import concurrent.futures
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.store.tensor_file import bytes_of

_BUFFER_BYTES = 32 << 20
_SLICE_BYTES = 4 << 20  # what a thread reads at least; less is not worth handing over
_NUM_THREADS = 4
_NUM_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file."""

    file: Path
    begin: int
    num_bytes: int


class Transfer(Protocol):
    """The way from the host to a device."""

    def buffer(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes] in memory that `start` copies from."""
        ...

    def start(self, source: Tensor, target: Tensor) -> Callable[[], None]:
        """Begin to copy; both are uint8 of one size. What it gives waits until `source` may be written to again."""
        ...


class CudaTransfer:
    """Copies in the order of the device's current stream, so whatever comes after sees them done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def buffer(self, num_bytes: int) -> Tensor:
        """See Transfer."""
        with torch.cuda.device(self._device):  # or pinning memory would open the first GPU
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def start(self, source: Tensor, target: Tensor) -> Callable[[], None]:
        """See Transfer."""
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
        transfer: Transfer,
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

    def copy(self, source: FileRange, target: Tensor) -> None:
        """Begin to fill a contiguous tensor of so many bytes; what lies in files is read when this returns.

        Raises OSError where the file can't be read or ends early.
        """
        flat = bytes_of(target)
        assert len(flat) == source.num_bytes
        file = os.open(source.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for begin in range(0, source.num_bytes, self._buffer_bytes):
                piece = flat[begin : begin + self._buffer_bytes]
                buffer = next(self._turns)
                buffer.wait()
                self._read(file, buffer.memory[: len(piece)], source.begin + begin)
                buffer.wait = self._transfer.start(buffer.memory[: len(piece)], piece)
        finally:
            os.close(file)

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
