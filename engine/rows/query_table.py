"""Sparse rows of queries whose weights are looked up in a table, beside documents that a model computes."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.model.model_folder import ModelFolder
from engine.model.weights import read_query_weights
from engine.types import Batch, OutputKind, Results, Rows
from wire.parts import QUERY_TOKEN

NOTE_OF_TABLE = "queries are looked up in a table and not computed"


class QueryTable:
    """A weight for each token id of a query. Several threads may use it at the same time."""

    def __init__(self, weights: NDArray[np.float32], surrounding_ids: tuple[int, ...]) -> None:
        self._weights = weights  # [V]
        self._surrounding_ids = frozenset(surrounding_ids)

    def documents(self, batch: Batch) -> Batch | None:
        """What is to be computed: the batch itself if no sequence is a query, and None if all are."""
        is_query = _queries_of(batch)
        if is_query is None:
            return batch
        return None if is_query.all() else batch.taken(~is_query)

    def with_queries(self, results: Results, batch: Batch) -> Results:
        """The answer to the batch, from that to its `documents`: {} where there are none."""
        is_query = _queries_of(batch)
        if is_query is None:
            return results
        assert batch.outputs == OutputKind.SPARSE, batch.outputs
        documents: Iterator[NDArray[np.float32]] = iter(())
        if results:
            rows = results[OutputKind.SPARSE]
            assert rows.offsets is not None
            documents = iter(np.split(rows.values, rows.offsets[1:-1]))
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


def _queries_of(batch: Batch) -> NDArray[np.bool_] | None:
    """Whether each sequence [B] is a query; None = none is."""
    is_marked = batch.marked(QUERY_TOKEN)
    return None if is_marked is None else is_marked[batch.cu_seqlens[:-1]]


def query_table(folder: ModelFolder) -> QueryTable | None:
    """None if queries are computed like documents. Raises ModelError if the table's file is wrong."""
    table = folder.query_table
    if table is None:
        return None
    return QueryTable(read_query_weights(folder.path / table.folder), table.surrounding_ids)
