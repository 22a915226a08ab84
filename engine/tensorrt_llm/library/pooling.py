"""From the rows of all tokens to one row a sequence, by operations that a CUDA graph can record.

Shapes: T tokens, B sequences, D numbers a row. A recorded shape is padded: T may be more than the sequences come to,
and a sequence may be empty; what row it gets does not matter, and the others' must not change. No size is read back.
"""

import torch
from torch import Tensor


def pool(token_rows: Tensor, seq_lens: Tensor, pooling: str) -> Tensor:
    """float32 [B, D] of token rows [T, D] and lengths [B] (whole numbers, same device); pooling: of head.POOLINGS."""
    ends = torch.cumsum(seq_lens, dim=0, dtype=torch.int64)
    match pooling:
        case "last":
            return token_rows[(ends - 1).clamp(min=0)].float()
        case "cls":
            return token_rows[(ends - seq_lens).clamp(max=len(token_rows) - 1)].float()
    assert pooling == "mean", pooling
    return _mean(token_rows, seq_lens, ends)


def _mean(token_rows: Tensor, seq_lens: Tensor, ends: Tensor) -> Tensor:
    """Sums into one row more than there are sequences: it takes the tokens that belong to none."""
    num_tokens, size = token_rows.shape
    owners = torch.searchsorted(ends, torch.arange(num_tokens, device=ends.device), right=True)
    sums = token_rows.new_zeros((len(ends) + 1, size), dtype=torch.float32)
    sums.index_add_(0, owners, token_rows.float())
    return sums[:-1] / seq_lens.clamp(min=1)[:, None]
