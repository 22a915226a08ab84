"""The CPU as a device: a batch is computed by whoever waits for it. For checking; speed is not its purpose."""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.fused.runner.device import Compute, NumRows
from engine.fused.runner.shape import Shape
from engine.types import OutputKind


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
        torch.set_num_threads(self._num_threads)  # holds for the thread that calls it
        shape, num_rows = self._started.pop(slot)
        rows = self._compute(torch.from_numpy(self._blocks[slot]), shape)
        return {kind: rows[kind][:number].to(torch.float32, copy=True).numpy() for kind, number in num_rows.items()}

    def settle(self) -> None:
        """See Device."""
