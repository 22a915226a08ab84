"""Position ids of a packed batch, numbered as the architecture does. Shared by the fused and transformers engines."""

import numpy as np
from numpy.typing import NDArray

from engine.types import Batch


def position_ids(batch: Batch, padding_idx: int | None) -> NDArray[np.int32]:
    """Positions [T], which start again with each sequence.

    RoBERTa and similar models (padding_idx given) number from padding_idx + 1 and skip tokens that are padding_idx
    themselves. A text can contain such a token by spelling it out.
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
