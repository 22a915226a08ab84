"""From the rows of all tokens to one row a sequence. Knows nothing of models.

Shapes: T tokens, B sequences, D numbers a row.
"""

import torch
from torch import Tensor
from torch.nn import functional


def pool(token_rows: Tensor, cu_seqlens: Tensor, *, pooling: str) -> Tensor:
    """float32 [B, D] of token rows [T, D] and int64 bounds [B + 1]; pooling is "cls", "mean" or "last".

    No sequence may be empty. A row depends on its own sequence alone, to the last bit.
    """
    if pooling == "cls":
        return token_rows[cu_seqlens[:-1]].float()
    if pooling == "last":
        return token_rows[cu_seqlens[1:] - 1].float()
    assert pooling == "mean", pooling
    return _mean(token_rows, cu_seqlens)


def _mean(token_rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A sum in float64 is exact in float32 for any length; differences of running sums would not be."""
    every_token = torch.arange(len(token_rows), device=token_rows.device)
    return functional.embedding_bag(every_token, token_rows.double(), offsets=cu_seqlens[:-1], mode="mean").float()
