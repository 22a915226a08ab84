"""Queries of sparse models that are looked up in a table instead of computed. Knows no model.

Shapes: B sequences in a batch, N entries of all of them, V entries of the vocabulary.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.model.model_folder import ModelFolder
from engine.model.weights import read_query_weights
from engine.types import QUERY_TOKEN, Batch, OutputKind, Results, Rows

Compute = Callable[[Batch], Results]


class QueryTable:
    """A weight for each token id of a query. Several threads may call it at the same time."""

    def __init__(self, weights: NDArray[np.float32], surrounding_ids: tuple[int, ...]) -> None:
        self._weights = weights  # [V]
        self._surrounding_ids = frozenset(surrounding_ids)

    def __call__(self, batch: Batch, compute: Compute) -> Results:
        """SPARSE of the whole batch: of queries from the table, of documents from one call of `compute`."""
        is_query = _queries(batch)
        if not is_query.any():
            return compute(batch)
        documents: Iterator[NDArray[np.float32]] = iter(())
        if not is_query.all():
            documents = _each(compute(_taken(batch, ~is_query))[OutputKind.SPARSE])
        bounds = zip(is_query.tolist(), pairwise(batch.cu_seqlens.tolist()), strict=True)
        found = [self._of(batch.token_ids[start:end]) if own else next(documents) for own, (start, end) in bounds]
        offsets = np.cumsum([0, *map(len, found)], dtype=np.int32)
        return {OutputKind.SPARSE: Rows(np.concatenate(found), offsets)}

    def _of(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """[n, 2] of one query: each id once, without surrounding special tokens and zero weights."""
        first = int(token_ids[0]) in self._surrounding_ids
        last = len(token_ids) > first and int(token_ids[-1]) in self._surrounding_ids
        ids = np.unique(token_ids[first : len(token_ids) - last])
        ids = ids[ids < len(self._weights)]
        ids = ids[self._weights[ids] != 0]
        return np.stack((ids.astype(np.float32), self._weights[ids]), axis=1)


def query_table(folder: ModelFolder) -> QueryTable | None:
    """None if queries are computed like documents. Raises ModelError if the table's file is wrong."""
    table = folder.query_table
    if table is None:
        return None
    return QueryTable(read_query_weights(folder.path / table.folder), table.surrounding_ids)


def _queries(batch: Batch) -> NDArray[np.bool_]:
    """Whether each sequence [B] is a query."""
    if batch.token_type_ids is None:
        return np.zeros(batch.num_seqs, np.bool_)
    is_query: NDArray[np.bool_] = (batch.token_type_ids[batch.cu_seqlens[:-1]] & QUERY_TOKEN) != 0
    return is_query


def _taken(batch: Batch, is_taken: NDArray[np.bool_]) -> Batch:
    """A batch of these sequences only."""
    assert batch.token_type_ids is not None
    seqlens = np.diff(batch.cu_seqlens)
    tokens = np.repeat(is_taken, seqlens)
    cu_seqlens = np.cumsum([0, *seqlens[is_taken]], dtype=np.int32)
    return Batch(batch.model, batch.outputs, batch.token_ids[tokens], cu_seqlens, batch.token_type_ids[tokens])


def _each(rows: Rows) -> Iterator[NDArray[np.float32]]:
    assert rows.offsets is not None
    yield from (rows.values[start:end] for start, end in pairwise(rows.offsets.tolist()))
