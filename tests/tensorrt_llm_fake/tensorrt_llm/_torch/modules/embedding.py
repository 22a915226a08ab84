"""The table of tokens."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Embedding(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int, dtype: Any = None, **others: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim), requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert input_ids.dtype is torch.int32
        assert input_ids.dim() == 1
        return functional.embedding(input_ids, self.weight)

    def load_weights(self, weights: list[dict[str, Any]]) -> None:
        assert len(weights) == 1
        self.weight.data.copy_(weights[0]["weight"][:])
