"""What the engine knows of a compiled model, and of the two libraries that compile one.

Shapes: B sequences in a padded mini-batch, S tokens of its longest, D numbers a row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from engine.cpu.conversion.graph import Graph

OUTPUT = "rows"

# int64 [B, S] by name of the input -> float32 [B, S, D], or [B, D] where a sequence has one row; valid until the next
# call of the same function
Run = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Executor:
    """A compiled model. A Run is called by one thread at a time; different ones may be called at the same time."""

    input_names: frozenset[str]
    streams: tuple[Run, ...]  # each computes on one core
    wide: Run | None  # on all cores at once; None where there is one core, or no memory for a second compilation
    min_wide_tokens: int = 1  # of a sequence, below which `wide` is no faster than a stream


class Backend(Protocol):
    """A library that compiles models."""

    @property
    def name(self) -> str:
        """Of the engine."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions whose versions the compiled form depends on."""
        ...

    @property
    def quantizations(self) -> tuple[str, ...]:
        """That it knows, "none" first."""
        ...

    @property
    def num_score_copies(self) -> float:
        """How many float32 arrays [num_heads, S, S] S tokens take at their peak; 0 = attention is fused."""
        ...

    def check(self, dtype: str) -> None:
        """Raises ModelError where it can't compute so on this machine."""
        ...

    def convert(self, model: "Graph", target: Path, *, quantization: str) -> int:
        """Write the model's converted form into the empty folder `target`, for `open` to read.

        Returns how many matrix products are quantized. Raises ModelError where there is none to quantize.
        """
        ...

    def open(self, folder: Path, *, dtype: str, num_threads: int) -> Executor:
        """Compile what `convert` wrote."""
        ...
