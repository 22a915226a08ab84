"""From the token rows of a padded mini-batch to one row a sequence. Knows nothing of models.

Shapes: B sequences, S tokens of the longest, D numbers a row.
"""

import numpy as np
from numpy.typing import NDArray


def pool(token_rows: NDArray[np.float32], seqlens: NDArray[np.int32], *, pooling: str) -> NDArray[np.float32]:
    """float32 [B, D] of token rows [B, S, D]; pooling is "cls", "mean" or "last".

    No sequence may be empty. What lies in the padding, NaN too, has no part in it.
    """
    if pooling == "cls":
        return token_rows[:, 0].copy()
    if pooling == "last":
        return token_rows[np.arange(len(seqlens)), seqlens - 1]
    assert pooling == "mean", pooling
    # a sum in float64 is exact in float32 for any length, so a row depends on its own sequence alone
    sums = [rows[:seqlen].sum(axis=0, dtype=np.float64) for rows, seqlen in zip(token_rows, seqlens, strict=True)]
    means: NDArray[np.float32] = (np.stack(sums) / seqlens[:, None]).astype(np.float32)
    return means
