"""The interface of a compiled model.

Shapes: B sequences in a padded mini-batch, S tokens of its longest, D numbers a row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# int64 [B, S] by name of the input -> float32 [B, S, D], or [B, D] where a sequence has one row; valid until the next
# call of the same function
Run = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Executor:
    """A compiled model. A Run is called by one thread at a time; different ones may be called at the same time."""

    input_names: frozenset[str]
    streams: tuple[Run, ...]  # one core each
    wide: Run | None  # on all cores at once; None with one core, or without memory for a second compilation
    multiple_alone: int  # a short sequence that is computed alone is as long as a multiple of so many tokens
