"""One model computed in one way, as plain data: it travels to a process of its own, and what it found comes back."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# The shapes that are tried; equal lengths and lone tokens are there on purpose.
SEQLENS = (5, 17, 1, 300, 64, 64, 129, 1, 511, 33)
By = Literal["engine", "transformers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A batch that is timed."""

    num_seqs: int
    seqlen: int  # tokens of each

    def __str__(self) -> str:
        return f"{self.num_seqs} x {self.seqlen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Fit for JSON by dataclasses.asdict."""

    model: str  # a key of small_models.MODELS, a name in benchmarks.gpu.shapes, or a folder
    by: By
    options: dict[str, Any] = field(default_factory=dict)  # as in load_options.changed; of a reference: dtype
    seqlens: tuple[int, ...] = SEQLENS  # of arbitrary ids; none = texts
    are_alone: bool = False  # each sequence is a batch
    shapes: tuple[Shape, ...] = ()  # timed beside that

    def __str__(self) -> str:
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.model} by {self.by}{f' ({options})' if options else ''}{', alone' if self.are_alone else ''}"


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one shape."""

    shape: str
    milliseconds: float  # a batch, median
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a job came to: rows, or why there are none."""

    rows: NDArray[np.float32] | None = None  # [N, L]
    failure: str = ""  # one line
    max_num_tokens: int = 0  # of a batch, as the engine ended up with
    speeds: tuple[Speed, ...] = ()
    notes: tuple[str, ...] = ()
