"""Which tokens are pooled, for both forms of pooling: all, or all but the prompts.

Some models want prompts left out. Their tokens are then dropped before the pooling, which is what sentence-transformers
comes to, in every mode: the first token is the first after the prompt, a mean is that of the others. Only the weights
of a weighted mean still count from the prompt's beginning. A prompt is at the start. A sequence that consists of
a prompt only is pooled as a whole, because a row needs at least one token.

Shapes: T tokens of all sequences, B sequences, S tokens of the longest, K tokens that are pooled.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.types import PROMPT_TOKEN, Batch


def pooled_in_padded(batch: Batch, index: NDArray[np.int64], is_token: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Which places [B, S] of a padded mini-batch are pooled; None = all tokens are. For index see MiniBatch."""
    if batch.token_type_ids is None:
        return None
    is_prompt = (batch.token_type_ids[index] & PROMPT_TOKEN) != 0
    if not is_prompt.any():
        return None
    is_pooled = is_token & ~is_prompt
    return np.where(is_pooled.any(axis=1, keepdims=True), is_pooled, is_token)


@dataclass(frozen=True, slots=True)
class PooledTokens:
    """The pooled tokens of a packed batch in which some are not."""

    index: NDArray[np.int64]  # [K], where they are in the batch
    cu_seqlens: NDArray[np.int64]  # [B + 1], their bounds
    num_dropped: NDArray[np.int64]  # [B], how many tokens before them are not pooled


def pooled_in_packed(batch: Batch) -> PooledTokens | None:
    """None = all tokens are pooled."""
    if batch.token_type_ids is None:
        return None
    is_prompt = (batch.token_type_ids & PROMPT_TOKEN) != 0
    if not is_prompt.any():
        return None
    seqlens = np.diff(batch.cu_seqlens)
    num_dropped = np.add.reduceat(is_prompt, batch.cu_seqlens[:-1], dtype=np.int64)
    num_dropped[num_dropped == seqlens] = 0
    is_dropped = is_prompt & np.repeat(num_dropped > 0, seqlens)
    return PooledTokens(np.flatnonzero(~is_dropped), np.cumsum([0, *(seqlens - num_dropped)]), num_dropped)
