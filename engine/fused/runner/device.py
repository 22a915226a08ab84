"""The interface of a device, and the CPU as one (for checks; it is slow).

A device has slots, each with room for one batch on its way there and back. It knows neither what is computed nor who
waits for it.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.runner.shape import Shape
from engine.types import OutputKind

# A packed block on the device (int32) and its shape -> rows by output kind: [B, D] pooled, [T, D] of tokens, in any
# floating dtype. It never synchronises with the host.
Compute = Callable[[Tensor, Shape], dict[OutputKind, Tensor]]
NumRows = Mapping[OutputKind, int]  # the number of rows of each output that are no padding


class Device(Protocol):
    """Computes batches in slots. One thread at a time calls `start`, and one `finish`, perhaps at the same time."""

    def block(self, slot: int) -> NDArray[np.int32]:
        """The host's block for the slot's next batch. Write it only before `start`, and again after `finish`."""
        ...

    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        """Start to compute the block, after the batches started before. Does not wait."""
        ...

    def finish(self, slot: int) -> dict[OutputKind, NDArray[np.float32]]:
        """Wait for the batch in this slot, not for later ones. The caller owns the rows."""
        ...

    def settle(self) -> None:
        """After `start` has raised: wait until no block is in use, and release unused memory."""
        ...


class HostDevice:
    """See engine.fused.runner.device.Device."""

    def __init__(self, compute: Compute, *, block_size: int, num_slots: int, num_threads: int) -> None:
        """block_size: numbers."""
        self._compute = compute
        self._num_threads = num_threads
        self._blocks = [np.zeros(block_size, np.int32) for _ in range(num_slots)]
        self._started: dict[int, tuple[Shape, NumRows]] = {}  # by slot

    def block(self, slot: int) -> NDArray[np.int32]:
        """See Device."""
        return self._blocks[slot]

    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        """See Device."""
        self._started[slot] = shape, num_rows

    @torch.inference_mode()
    def finish(self, slot: int) -> dict[OutputKind, NDArray[np.float32]]:
        """See Device."""
        torch.set_num_threads(self._num_threads)  # for the calling thread only
        shape, num_rows = self._started.pop(slot)
        rows = self._compute(torch.from_numpy(self._blocks[slot]), shape)
        return {kind: rows[kind][:number].to(torch.float32, copy=True).numpy() for kind, number in num_rows.items()}

    def settle(self) -> None:
        """See Device."""
