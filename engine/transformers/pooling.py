"""From the rows of all tokens to one row a sequence. Knows nothing of models.

Shapes: T tokens, B sequences, D numbers a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.head.on_torch import TorchHead


@dataclass(frozen=True, slots=True)
class Pooling:
    """What one model does with token rows."""

    poolings: tuple[str, ...]  # see ModelFolder
    head: TorchHead

    @torch.inference_mode()
    def __call__(self, token_rows: Tensor, cu_seqlens: Tensor) -> Tensor:
        """float32 [B, D] of token rows [T, d] and int64 bounds [B + 1]."""
        return self.head(pool(token_rows, cu_seqlens, poolings=self.poolings))


def pool(token_rows: Tensor, cu_seqlens: Tensor, *, poolings: Sequence[str]) -> Tensor:
    """float32 [B, len(poolings) * D] of token rows [T, D] and int64 bounds [B + 1]; for poolings see ModelFolder.

    No sequence may be empty. A row depends on its own sequence alone, to the last bit.
    """
    return torch.cat([_pool(token_rows, cu_seqlens, pooling) for pooling in poolings], dim=1)


def _pool(token_rows: Tensor, cu_seqlens: Tensor, pooling: str) -> Tensor:
    starts = cu_seqlens[:-1]
    match pooling:
        case "cls":
            return token_rows[starts].float()
        case "last":
            return token_rows[cu_seqlens[1:] - 1].float()
        case "max":
            return functional.embedding_bag(_every(token_rows), token_rows.float(), offsets=starts, mode="max")
        case "mean":
            return _mean(token_rows, cu_seqlens).float()
        case "mean_sqrt_len_tokens":
            return (_mean(token_rows, cu_seqlens) * cu_seqlens.diff().sqrt()[:, None]).float()
    assert pooling == "weightedmean", pooling
    return _weighted_mean(token_rows, cu_seqlens)


def _mean(token_rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A sum in float64 is exact in float32 for any length; differences of running sums would not be."""
    return functional.embedding_bag(_every(token_rows), token_rows.double(), offsets=cu_seqlens[:-1], mode="mean")


def _weighted_mean(token_rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A token weighs as much as it has tokens up to itself."""
    every, seqlens = _every(token_rows), cu_seqlens.diff()
    weights = (every - cu_seqlens[:-1].repeat_interleave(seqlens, output_size=len(every)) + 1).double()
    sums = functional.embedding_bag(
        every, token_rows.double(), offsets=cu_seqlens[:-1], mode="sum", per_sample_weights=weights
    )
    return (sums / (seqlens * (seqlens + 1) / 2)[:, None]).float()


def _every(token_rows: Tensor) -> Tensor:
    return torch.arange(len(token_rows), device=token_rows.device)
