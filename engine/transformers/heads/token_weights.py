"""bge-m3's lexical weights: a weight for each token id of a text.

Shapes: T tokens of a batch, B sequences, N entries of all sequences, D numbers a row.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.model_folder import ModelFolder
from engine.model.tasks import TokenWeights
from engine.rows.head_torch import TorchHead, load_head
from engine.transformers.forward import Maker
from engine.types import Batch, Rows


def token_weights(folder: ModelFolder, head: TokenWeights, device: torch.device) -> Maker:
    """Gives ragged rows [N, 2]: each token id of a sequence and its weight, in order of the ids.

    Raises ModelError if the head's file is wrong.
    """
    return _TokenWeights(load_head(folder.path, [head.step(folder.hidden_size)], device=device), head.unused_ids)


class _TokenWeights:
    """May be called by several threads at the same time."""

    def __init__(self, head: TorchHead, unused_ids: tuple[int, ...]) -> None:
        self._head = head
        self._unused_ids = np.array(unused_ids, np.int32)

    @torch.inference_mode()
    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        return largest_of_each_id(self._head(token_rows)[:, 0].cpu().numpy(), batch, self._unused_ids)


def largest_of_each_id(weights: NDArray[np.float32], batch: Batch, unused_ids: NDArray[np.int32]) -> Rows:
    """Ragged rows [N, 2] of the weights [T] of tokens, without zeros and unused ids."""
    sequence = np.repeat(np.arange(batch.num_seqs), np.diff(batch.cu_seqlens))
    order = np.lexsort((batch.token_ids, sequence))
    ids, sequence = batch.token_ids[order], sequence[order]
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1]) | (sequence[1:] != sequence[:-1])
    largest = np.maximum.reduceat(weights[order], np.flatnonzero(is_first))
    ids, sequence = ids[is_first], sequence[is_first]
    is_kept = (largest != 0) & ~np.isin(ids, unused_ids)  # NaN is kept, to be noticed
    entries = np.stack((ids[is_kept].astype(np.float32), largest[is_kept]), axis=1)
    offsets = np.zeros(batch.num_seqs + 1, np.int32)
    np.cumsum(np.bincount(sequence[is_kept], minlength=batch.num_seqs), out=offsets[1:])
    return Rows(entries, offsets)
