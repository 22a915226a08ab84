"""From the token rows of a padded mini-batch to one row a sequence, with numpy alone. Knows nothing of models.

engine.rows.pooling_torch does the same with torch.

Shapes: B sequences, S tokens of the longest, D numbers a row, K tokens of a sequence that are pooled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.rows.modules_numpy import RowModules

_Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pooling:
    """What one model does with token rows. May be called by several threads at the same time."""

    poolings: tuple[str, ...]  # of engine.model.steps.POOLINGS
    modules: RowModules

    def __call__(
        self, token_rows: _Rows, seqlens: NDArray[np.int32], is_pooled: NDArray[np.bool_] | None = None
    ) -> _Rows:
        """float32 [B, D] of token rows [B, S, d]; for is_pooled see `pool`."""
        return self.modules(pool(token_rows, seqlens, poolings=self.poolings, is_pooled=is_pooled))


def pool(
    token_rows: _Rows,
    seqlens: NDArray[np.int32],
    *,
    poolings: Sequence[str],
    is_pooled: NDArray[np.bool_] | None = None,
) -> _Rows:
    """float32 [B, len(poolings) * D] of token rows [B, S, D].

    is_pooled [B, S]: False for tokens that are left out as if they were not there, but for their place in a weighted
    mean, and in the padding; None = none is left out. No sequence may be empty, or lose all of its tokens. What lies in
    the padding, NaN too, has no part in it.
    """
    return np.concatenate([_pool(token_rows, seqlens, pooling, is_pooled) for pooling in poolings], axis=1)


def _pool(token_rows: _Rows, seqlens: NDArray[np.int32], pooling: str, is_pooled: NDArray[np.bool_] | None) -> _Rows:
    match pooling:
        case "cls":
            return _at(token_rows, np.zeros_like(seqlens) if is_pooled is None else is_pooled.argmax(axis=1))
        case "last":
            last = seqlens - 1 if is_pooled is None else is_pooled.shape[1] - 1 - is_pooled[:, ::-1].argmax(axis=1)
            return _at(token_rows, last)
    if is_pooled is None:
        pairs = zip(token_rows, seqlens, strict=True)
        return np.stack([_pool_one(rows[:seqlen], pooling, np.arange(seqlen)) for rows, seqlen in pairs])
    places = [np.flatnonzero(mask) for mask in is_pooled]
    return np.stack([_pool_one(rows[kept], pooling, kept) for rows, kept in zip(token_rows, places, strict=True)])


def _at(token_rows: _Rows, places: NDArray[Any]) -> _Rows:
    found: _Rows = token_rows[np.arange(len(places)), places]
    return found


def _pool_one(rows: _Rows, pooling: str, places: NDArray[np.int64]) -> _Rows:
    """Pools rows [K, D] of one sequence; `places` says where each is in it.

    A sum in float64 is exact in float32 for any length, so nothing of the batch is in it.
    """
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
            weights = places + 1.0  # a token weighs as much as it has tokens up to itself
            found = weights @ rows / weights.sum()
    return found.astype(np.float32)
