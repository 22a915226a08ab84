"""What transformers itself makes of some sequences, one at a time: what executors are held against. Knows torch.

Shapes: S tokens of a sequence, D numbers a row.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.compiled.conversion import TokenRows
from engine.failures import not_finite, one_line
from engine.sample_ids import Sequences
from engine.types import ModelError


@dataclass(frozen=True, slots=True)
class Reference:
    """Sequences and their rows."""

    sequences: Sequences  # int32 [S] each
    token_rows: list[NDArray[np.float32]]  # [S, D] each

    @property
    def dimensions(self) -> int:
        """D."""
        return int(self.token_rows[0].shape[1])


def compute(model: TokenRows, sequences: Sequences) -> Reference:
    """Raises ModelError where the model does not run, or gives rows that are not finite."""
    try:
        rows = [_run(model, sequence) for sequence in sequences]
    except Exception as error:
        raise ModelError(f"the model does not run on token ids alone: {one_line(error)}") from error
    if not all(np.isfinite(token_rows).all() for token_rows in rows):
        raise not_finite("transformers", "float32")
    return Reference(sequences, rows)


@torch.inference_mode()
def _run(model: TokenRows, sequence: NDArray[np.int32]) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = model(torch.tensor(sequence, dtype=torch.int64)[None])[0].numpy()
    return rows
