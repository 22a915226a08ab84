"""From the rows of all tokens to one row a sequence. Knows nothing of models.

Some models want prompts left out. Their tokens are then dropped before the pooling, which is what sentence-transformers
comes to, in every mode: the first token is the first after the prompt, a mean is that of the others. Only the weights
of a weighted mean still count from the prompt's beginning.

Shapes: T tokens, B sequences, D numbers a row, K tokens that are pooled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.rows.head_torch import TorchHead
from engine.rows.transfer import on_device
from engine.types import PROMPT_TOKEN, Batch


@dataclass(frozen=True, slots=True)
class Pooling:
    """What one model does with token rows."""

    poolings: tuple[str, ...]  # see ModelFolder
    head: TorchHead

    @torch.inference_mode()
    def __call__(self, token_rows: Tensor, batch: Batch) -> Tensor:
        """float32 [B, D] of token rows [T, d], where those are."""
        kept = _without_prompts(batch)
        if kept is None:
            return self.head(pool(token_rows, on_device(batch.cu_seqlens, token_rows.device), poolings=self.poolings))
        index, cu_seqlens, num_dropped = (on_device(each, token_rows.device) for each in kept)
        return self.head(pool(token_rows[index], cu_seqlens, poolings=self.poolings, num_dropped=num_dropped))


def _without_prompts(batch: Batch) -> tuple[NDArray[np.int64], ...] | None:
    """The tokens [K] that are pooled, their bounds [B + 1], and how many before them [B] are not; None = all are.

    A prompt is at the start. A sequence that is nothing but a prompt is pooled as a whole: without any token there
    would be no row.
    """
    if batch.token_type_ids is None:
        return None
    is_prompt = (batch.token_type_ids & PROMPT_TOKEN) != 0
    if not is_prompt.any():
        return None
    seqlens = np.diff(batch.cu_seqlens)
    num_dropped = np.add.reduceat(is_prompt, batch.cu_seqlens[:-1], dtype=np.int64)
    num_dropped[num_dropped == seqlens] = 0
    is_dropped = is_prompt & np.repeat(num_dropped > 0, seqlens)
    return np.flatnonzero(~is_dropped), np.cumsum([0, *(seqlens - num_dropped)]), num_dropped


def pool(
    token_rows: Tensor, cu_seqlens: Tensor, *, poolings: Sequence[str], num_dropped: Tensor | None = None
) -> Tensor:
    """float32 [B, len(poolings) * D] of token rows [T, D] and int64 bounds [B + 1]; for poolings see ModelFolder.

    num_dropped: int64 [B], how many tokens of each sequence came before those here; None = none. No sequence may be
    empty. A row depends on its own sequence alone, to the last bit.
    """
    return torch.cat([_pool(token_rows, cu_seqlens, pooling, num_dropped) for pooling in poolings], dim=1)


def _pool(token_rows: Tensor, cu_seqlens: Tensor, pooling: str, num_dropped: Tensor | None) -> Tensor:
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
    return _weighted_mean(token_rows, cu_seqlens, torch.zeros_like(starts) if num_dropped is None else num_dropped)


def _mean(token_rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A sum in float64 is exact in float32 for any length; differences of running sums would not be."""
    return functional.embedding_bag(_every(token_rows), token_rows.double(), offsets=cu_seqlens[:-1], mode="mean")


def _weighted_mean(token_rows: Tensor, cu_seqlens: Tensor, num_dropped: Tensor) -> Tensor:
    """A token weighs as much as it has tokens up to itself, those that were dropped too."""
    every, seqlens = _every(token_rows), cu_seqlens.diff()
    first = cu_seqlens[:-1] - num_dropped
    weights = (every - first.repeat_interleave(seqlens, output_size=len(every)) + 1).double()
    sums = functional.embedding_bag(
        every, token_rows.double(), offsets=cu_seqlens[:-1], mode="sum", per_sample_weights=weights
    )
    return (sums / (seqlens * (seqlens + 1) / 2 + seqlens * num_dropped)[:, None]).float()


def _every(token_rows: Tensor) -> Tensor:
    return torch.arange(len(token_rows), device=token_rows.device)
