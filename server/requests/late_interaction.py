"""Late interaction: rows of tokens that count, and MaxSim of a query with documents.

Shape legend: S sequences, N rows of all of them, Q rows of the query, D numbers in a row.
"""

import numpy as np
from numpy.typing import NDArray

from engine.types import OutputKind, Rows
from server.requests.late_tokens import counted
from server.requests.pipeline import Pipeline
from server.requests.time_slices import TimeSlice, steps
from server.requests.trace import Trace
from server.requests.work import Computed, Embedded, EmbedRequest, Work


async def embed_tokens(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    """Ragged float32 rows [N, D] of tokens, with offsets [S + 1]: of those that count, for late interaction.

    With MULTI_VECTOR the first request.num_queries texts are queries, the others documents. They get the model's
    markers and lengths; ids are taken as they are. Raises RequestError.
    """
    if request.outputs is not OutputKind.MULTI_VECTOR:
        return await pipeline.embed(request, trace)
    return await rows_that_count(await pipeline.compute(request, trace), request)


async def rows_that_count(computed: Computed, request: Work) -> Embedded:
    """The rows for late interaction among what was computed for `request`."""
    rows, tokens = computed.results[OutputKind.MULTI_VECTOR], computed.tokens
    assert rows.offsets is not None, "rows of tokens are ragged"
    counts = counted(tokens, request.model.late, num_queries=request.num_queries)
    if counts is not None:
        rows = await _kept(rows.values, rows.offsets, counts)
    return Embedded(rows.values, computed.num_tokens, tokens.truncated, rows.offsets)


async def max_sim(
    rows: NDArray[np.float32], offsets: NDArray[np.int32], counts: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """A score of each document, float32 [S - 1]: for each row of the query the largest product with a row of the
    document, summed. The first sequence is the query; `counts` [N] says which rows count, None = all.

    A document without rows that count gets 0. Long work is done in slices.
    """
    query = rows[: offsets[1]] if counts is None else rows[: offsets[1]][counts[: offsets[1]]]
    scores = np.zeros(len(offsets) - 2, np.float32)
    best = np.full(len(query), -np.inf, np.float32)  # of the current document, of which a step may have only a part
    num_query_rows = int(offsets[1])
    # a product costs a fraction of a number written as JSON; a document of one row costs as much as 64 numbers
    async for part in steps(len(rows) - num_query_rows, max(64, query.size // 256)):
        start, stop = num_query_rows + part.start, num_query_rows + part.stop
        products = rows[start:stop] @ query.T  # [stop - start, Q]
        if counts is not None:
            products[~counts[start:stop]] = -np.inf
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        while first < len(offsets) - 1 and offsets[first] < stop:
            of_document = products[max(offsets[first] - start, 0) : offsets[first + 1] - start]
            if len(of_document):
                np.maximum(best, of_document.max(axis=0), out=best)
                if offsets[first + 1] <= stop:
                    scores[first - 1] = best.sum(dtype=np.float32) if np.isfinite(best).all() else 0
                    best.fill(-np.inf)
            first += 1
    return scores


async def max_sim_of_pairs(
    rows: NDArray[np.float32], offsets: NDArray[np.int32], counts: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """The same of S / 2 queries, which come first, each with a document of its own; float32 [S / 2]."""
    num_pairs = (len(offsets) - 1) // 2
    scores, time_slice = np.empty(num_pairs, np.float32), TimeSlice()
    for query in range(num_pairs):
        spans = [slice(offsets[at], offsets[at + 1]) for at in (query, num_pairs + query)]
        parts = [rows[span] if counts is None else rows[span][counts[span]] for span in spans]
        own = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        scores[query] = (await max_sim(np.concatenate(parts), own))[0]
        await time_slice.end_if_over()
    return scores


async def _kept(values: NDArray[np.float32], offsets: NDArray[np.int32], counts: NDArray[np.bool_]) -> Rows:
    """The rows [N, D] of the tokens that count."""
    totals = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=totals[1:])
    kept = np.empty((totals[-1], values.shape[1]), np.float32)
    async for part in steps(*values.shape):
        kept[totals[part.start] : totals[part.stop]] = values[part][counts[part]]
    return Rows(kept, totals[offsets])
