"""The rows that transformers itself gives, with which a freshly compiled model is compared. Knows torch.

Shapes: S tokens of a sequence, D numbers a row; where a sequence has one row, S is 1.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.cpu.conversion.graph import Graph
from engine.cpu.selftest import Reference, num_hidden
from engine.machine.failures import one_line
from engine.selftest.comparison import not_finite
from engine.selftest.sample_ids import Sequences
from engine.transformers.state import State
from engine.types import ModelError


def compute_reference(model: Graph, state: State, sequences: Sequences, *, hides_tokens: bool = False) -> Reference:
    """Each as if it were the first: state is what the model held when it was loaded, and holds afterwards.

    Raises ModelError if the model does not run, or gives rows that are not finite.
    """
    rows = []
    try:
        for sequence in sequences:
            rows.append(_run_original(model, sequence, num_hidden(sequence) if hides_tokens else 0))
            state.restore()
    except Exception as error:
        raise ModelError(f"the model does not run on token ids alone: {one_line(error)}") from error
    if not all(np.isfinite(of_one).all() for of_one in rows):
        raise not_finite("transformers", "float32")
    return Reference(sequences, rows, hides_tokens)


@torch.inference_mode()
def _run_original(model: Graph, sequence: NDArray[np.int32], hidden: int) -> NDArray[np.float32]:
    ids = torch.tensor(sequence, dtype=torch.int64)[None]
    mask = torch.ones_like(ids)  # without one, some classes (XLM) take each padding id for padding
    mask[:, len(sequence) - hidden :] = 0
    rows: NDArray[np.float32] = model(ids, mask)[0].numpy()
    return rows if model.is_per_token else rows[None]
