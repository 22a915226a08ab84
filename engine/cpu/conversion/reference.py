"""What transformers itself makes of some sequences, one at a time: what executors are held against. Knows torch.

Shapes: S tokens of a sequence, D numbers a row; where a sequence has one row, S is 1.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.cpu.conversion.graph import Graph
from engine.failures import not_finite, one_line
from engine.selftest.sample_ids import Sequences
from engine.selftest.sequences import num_hidden
from engine.types import ModelError


@dataclass(frozen=True, slots=True)
class Reference:
    """Sequences and their rows."""

    sequences: Sequences  # int32 [S] each
    rows: list[NDArray[np.float32]]  # [S, D] each
    hides_tokens: bool = False  # those at the end of each sequence, see samples.num_hidden

    @property
    def dimensions(self) -> int:
        """D."""
        return int(self.rows[0].shape[1])


def compute(model: Graph, sequences: Sequences, *, hides_tokens: bool = False) -> Reference:
    """Raises ModelError where the model does not run, or gives rows that are not finite."""
    try:
        rows = [_run(model, sequence, num_hidden(sequence) if hides_tokens else 0) for sequence in sequences]
    except Exception as error:
        raise ModelError(f"the model does not run on token ids alone: {one_line(error)}") from error
    if not all(np.isfinite(of_one).all() for of_one in rows):
        raise not_finite("transformers", "float32")
    return Reference(sequences, rows, hides_tokens)


@torch.inference_mode()
def _run(model: Graph, sequence: NDArray[np.int32], num_hidden: int) -> NDArray[np.float32]:
    ids, mask = torch.tensor(sequence, dtype=torch.int64)[None], None
    if num_hidden:
        mask = torch.ones_like(ids)
        mask[:, -num_hidden:] = 0
    rows: NDArray[np.float32] = model(ids, mask)[0].numpy()
    return rows if model.is_per_token else rows[None]
