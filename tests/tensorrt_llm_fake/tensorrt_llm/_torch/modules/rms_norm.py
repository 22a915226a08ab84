"""The norm, which adds what goes past a layer where it is given that too."""

from types import EllipsisType
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm


class RMSNorm(LlamaRMSNorm):
    def __init__(self, *, hidden_size: int, eps: float, dtype: Any = None) -> None:
        super().__init__(hidden_size, eps)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor | EllipsisType | None = ...) -> Any:
        """The normed rows; with a residual, also the sum that they were made of."""
        if residual is ...:
            return super().forward(hidden_states)
        if residual is not None:
            hidden_states = hidden_states + residual
        return super().forward(hidden_states), hidden_states
