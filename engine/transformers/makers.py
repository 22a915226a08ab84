"""What is made of the token rows of a batch, for each kind of output that a model can give."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.head.on_torch import load_head
from engine.model_folder import ModelFolder
from engine.transformers.pooling import Pooling
from engine.transformers.transfer import on_device
from engine.types import Batch, ModelError, OutputKind, Rows

Maker = Callable[[Tensor, Batch], Rows]  # of the last hidden states [T, D] in the order of batch.token_ids
Makers = Mapping[OutputKind, Maker]


def makers_of(folder: ModelFolder, device: torch.device) -> dict[OutputKind, Maker]:
    """One for each of folder.outputs. Raises ModelError."""
    makers: dict[OutputKind, Maker] = {}
    if OutputKind.POOLED in folder.outputs:
        pooling = Pooling(folder.poolings, load_head(folder.path, folder.steps, device=device))
        makers |= embeddings(pooling, device)
    if missing := folder.outputs & ~OutputKind(sum(makers)):
        raise ModelError(f"the transformers engine gives no {missing.name} rows")
    return makers


def embeddings(pooling: Pooling, device: torch.device) -> dict[OutputKind, Maker]:
    """Of a model that gives a row for a text, and one for each of its tokens."""
    return {OutputKind.POOLED: _Pooled(pooling, device), OutputKind.TOKENS: _token_rows}


class _Pooled:
    """One row a sequence, before a final Normalize."""

    def __init__(self, pooling: Pooling, device: torch.device) -> None:
        self._pooling = pooling
        self._device = device

    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        return Rows(self._pooling(token_rows, on_device(batch.cu_seqlens, self._device)).cpu().numpy())


def _token_rows(token_rows: Tensor, batch: Batch) -> Rows:
    return Rows(token_rows.cpu().float().numpy(), batch.cu_seqlens)
