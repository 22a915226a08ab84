"""bge-m3's lexical weights: a weight for each token id of a text.

Shapes: T tokens of a batch, B sequences, N entries of all sequences, D numbers a row.
"""

import numpy as np
import torch
from torch import Tensor

from engine.model.model_folder import ModelFolder
from engine.model.tasks import TokenWeights
from engine.rows.with_numpy import largest_of_each_id
from engine.rows.with_torch import RowModules, load_modules
from engine.transformers.forward import Maker
from engine.types import Batch, Rows


def token_weights(folder: ModelFolder, head: TokenWeights, device: torch.device) -> Maker:
    """Gives ragged rows [N, 2]: each token id of a sequence and its weight, in order of the ids.

    Raises ModelError if the head's file is wrong.
    """
    return _TokenWeights(load_modules(folder.path, [head.step(folder.hidden_size)], device=device), head.unused_ids)


class _TokenWeights:
    """May be called by several threads at the same time."""

    def __init__(self, modules: RowModules, unused_ids: tuple[int, ...]) -> None:
        self._modules = modules
        self._unused_ids = np.array(unused_ids, np.int32)

    @torch.inference_mode()
    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        weights = self._modules(token_rows)[:, 0].cpu().numpy()
        seqlens = np.diff(batch.cu_seqlens)
        return Rows(*largest_of_each_id(weights, batch.token_ids, seqlens, unused_ids=self._unused_ids))
