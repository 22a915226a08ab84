"""The interfaces of a compiled model and of the libraries that compile one.

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

# int64 [B, S] by name of the input -> float32 [B, S, D], or [B, D] where a sequence has one row; valid until the next
# call of the same function
Run = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Executor:
    """A compiled model. A Run is called by one thread at a time; different ones may be called at the same time."""

    input_names: frozenset[str]
    streams: tuple[Run, ...]  # one core each
    wide: Run | None  # on all cores at once; None with one core, or without memory for a second compilation
    min_wide_tokens: int = 1  # for shorter sequences `wide` is no faster than a stream


class Backend(Protocol):
    """A library that compiles models."""

    @property
    def name(self) -> str:
        """The engine's name."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose versions the compiled model depends on."""
        ...

    @property
    def quantizations(self) -> tuple[str, ...]:
        """The supported quantizations, "none" first."""
        ...

    @property
    def has_bfloat16(self) -> bool:
        """Whether it computes in bfloat16 on some CPUs."""
        ...

    @property
    def num_score_copies(self) -> float:
        """Float32 arrays [num_heads, S, S] in memory at the peak for S tokens; 0 = attention is fused."""
        ...

    def check(self, dtype: str) -> None:
        """Raises ModelError if this machine can't compute in the dtype."""
        ...

    def convert(self, model: "Graph", target: Path, *, quantization: str) -> int:
        """Write the converted model into the empty folder `target`, for `open`.

        Returns the number of quantized matrix products. Raises ModelError if there are none to quantize.
        """
        ...

    def open(self, folder: Path, *, dtype: str, num_threads: int) -> Executor:
        """Compile the files of `convert`."""
        ...
