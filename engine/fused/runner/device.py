"""What the runner needs of a device: slots, each with room for one batch on its way there and back.

Knows neither what is computed nor who waits for it.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.runner.shape import Shape
from engine.types import OutputKind

# A packed block on the device (int32), and what is in it -> rows by output kind: [B, D] pooled, [T, D] of tokens, in
# any floating dtype. It never synchronises with the host.
Compute = Callable[[Tensor, Shape], dict[OutputKind, Tensor]]
NumRows = Mapping[OutputKind, int]  # how many of a shape's rows are wanted; the rest is padding


class Device(Protocol):
    """Slots are used one after the other. `start` and `block` are called by one thread, `finish` by another."""

    def block(self, slot: int) -> NDArray[np.int32]:
        """Where the next batch of this slot is to be packed; free from `finish` (or `settle`) to `start`."""
        ...

    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        """Begin to compute the block, behind what was begun before; does not wait for it."""
        ...

    def finish(self, slot: int) -> dict[OutputKind, NDArray[np.float32]]:
        """Wait for what was started in this slot, and nothing later; the rows are the caller's to keep."""
        ...

    def settle(self) -> None:
        """After `start` raised: wait until nothing reads any block, and give unused memory back."""
        ...
