"""From the token rows of a padded mini-batch to one row a sequence. Knows nothing of models.

Shapes: B sequences, S tokens of the longest, D numbers a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.head.host import HostHead

_Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pooling:
    """What one model does with token rows. May be called by several threads at the same time."""

    poolings: tuple[str, ...]  # see ModelFolder
    head: HostHead

    def __call__(self, token_rows: _Rows, seqlens: NDArray[np.int32]) -> _Rows:
        """float32 [B, D] of token rows [B, S, d]."""
        return self.head(pool(token_rows, seqlens, poolings=self.poolings))


def pool(token_rows: _Rows, seqlens: NDArray[np.int32], *, poolings: Sequence[str]) -> _Rows:
    """float32 [B, len(poolings) * D] of token rows [B, S, D]; for poolings see ModelFolder.

    No sequence may be empty. What lies in the padding, NaN too, has no part in it.
    """
    return np.concatenate([_pool(token_rows, seqlens, pooling) for pooling in poolings], axis=1)


def _pool(token_rows: _Rows, seqlens: NDArray[np.int32], pooling: str) -> _Rows:
    if pooling == "cls":
        return token_rows[:, 0]
    if pooling == "last":
        return token_rows[np.arange(len(seqlens)), seqlens - 1]
    return np.stack([_of_one(rows[:seqlen], pooling) for rows, seqlen in zip(token_rows, seqlens, strict=True)])


def _of_one(rows: _Rows, pooling: str) -> _Rows:
    """Of one sequence's rows. A sum in float64 is exact in float32 for any length, so nothing of the batch is in it."""
    found: NDArray[Any]
    match pooling:
        case "max":
            found = rows.max(axis=0)
        case "mean":
            found = rows.sum(axis=0, dtype=np.float64) / len(rows)
        case "mean_sqrt_len_tokens":
            found = rows.sum(axis=0, dtype=np.float64) / np.sqrt(len(rows))
        case _:
            assert pooling == "weightedmean", pooling
            weights = np.arange(1.0, len(rows) + 1)  # a token weighs as much as it has tokens up to itself
            found = weights @ rows / weights.sum()
    return found.astype(np.float32)
