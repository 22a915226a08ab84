"""ColBERT: a vector for each token, for late interaction. Which tokens count there is decided elsewhere.

Shapes: T tokens of a batch, D numbers a row.
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.model_folder import ModelFolder
from engine.model.tasks import NORMALIZE_FLOOR, TokenVectors, output_size
from engine.rows.with_torch import RowModules, load_modules
from engine.transformers.forward import Maker
from engine.types import Batch, Rows


def token_vectors(folder: ModelFolder, head: TokenVectors, device: torch.device) -> Maker:
    """Gives ragged rows [T, head.dimensions], one for each token in the order of the batch.

    Raises ModelError if a file of the steps is wrong.
    """
    size = output_size(head.steps, folder.hidden_size)
    assert size == head.dimensions, (size, head.dimensions)
    return _TokenVectors(load_modules(folder.path, head.steps, device=device), normalizes=head.normalize)


class _TokenVectors:
    """May be called by several threads at the same time."""

    def __init__(self, steps: RowModules, *, normalizes: bool) -> None:
        self._steps = steps
        self._normalizes = normalizes

    @torch.inference_mode()
    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        vectors = self._steps(token_rows).float()
        if self._normalizes:
            vectors = functional.normalize(vectors, dim=-1, eps=NORMALIZE_FLOOR)
        return Rows(vectors.cpu().numpy(), batch.cu_seqlens)
