"""Where in its sequence each token of a packed batch stands, counted as its architecture counts. Knows no tensors."""

import numpy as np
from numpy.typing import NDArray

from engine.types import Batch


def position_ids(batch: Batch, padding_idx: int | None) -> NDArray[np.int32]:
    """Positions [T] that begin anew with each sequence.

    RoBERTa and its kin (padding_idx given) number from padding_idx + 1, and leave out tokens that are padding_idx
    themselves, as a text can make one by spelling it out.
    """
    starts = np.repeat(batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens))
    if padding_idx is None:
        return np.arange(batch.num_tokens, dtype=np.int32) - starts
    is_token = batch.token_ids != padding_idx
    num_before = np.zeros(batch.num_tokens + 1, np.int32)
    np.cumsum(is_token, out=num_before[1:])
    numbers = num_before[1:] - num_before[starts]
    if not is_token.all():
        numbers *= is_token
    return numbers + np.int32(padding_idx)
