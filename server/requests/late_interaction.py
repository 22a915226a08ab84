"""Late interaction: rows of tokens that count, and MaxSim of a query with documents.

Shape legend: S sequences, N rows of all of them, Q rows of the query, D numbers in a row.
"""

import asyncio
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.types import OutputKind, Rows
from server.requests.late_tokens import counted
from server.requests.pipeline import Computed, Embedded, Pipeline, Work
from server.requests.trace import Trace

# Done in one go, less than a millisecond each.
_PRODUCTS_A_SLICE = 1 << 22  # of two numbers each
_ROWS_A_SLICE = 256  # are compared, which may be as many documents
_FLOATS_A_SLICE = 1 << 18  # are copied


async def compared_rows(pipeline: Pipeline, request: Work, trace: Trace) -> Embedded:
    """Ragged float32 rows [N, D] of the tokens that count, with offsets [S + 1].

    The first request.num_queries texts are queries, the others documents; they get the model's markers and lengths,
    while ids are taken as they stand. Raises RequestError.
    """
    computed = await pipeline.compute(replace(request, outputs=OutputKind.MULTI_VECTOR), trace)
    return await rows_that_count(computed, request)


async def rows_that_count(computed: Computed, request: Work) -> Embedded:
    """The same of what has been computed for `request`, be it with other outputs."""
    rows, tokens = computed.results[OutputKind.MULTI_VECTOR], computed.tokens
    assert rows.offsets is not None, "rows of tokens are ragged"
    counts = counted(tokens, request.model.late, num_queries=request.num_queries)
    if counts is not None:
        rows = await _kept(rows.values, rows.offsets, counts)
    return Embedded(rows.values, computed.num_tokens, tokens.truncated, rows.offsets)


async def max_sim(
    rows: NDArray[np.float32], offsets: NDArray[np.int32], counts: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """How well each document answers the query, float32 [S - 1]: for each row of the query the largest product with
    a row of the document, summed. The first sequence is the query; `counts` [N] are the rows that do, None = all.

    A document without rows that count gets 0. Long work is done in slices.
    """
    query = rows[: offsets[1]] if counts is None else rows[: offsets[1]][counts[: offsets[1]]]
    scores = np.zeros(len(offsets) - 2, np.float32)
    step = max(1, min(_ROWS_A_SLICE, _PRODUCTS_A_SLICE // max(1, query.size)))
    best = np.full(len(query), -np.inf, np.float32)  # of the document at hand, which may be cut by a slice
    for start in range(int(offsets[1]), len(rows), step):
        stop = min(start + step, len(rows))
        products = rows[start:stop] @ query.T  # [stop - start, Q]
        if counts is not None:
            products[~counts[start:stop]] = -np.inf
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        while first < len(offsets) - 1 and offsets[first] < stop:
            part = products[max(offsets[first] - start, 0) : offsets[first + 1] - start]
            if len(part):
                np.maximum(best, part.max(axis=0), out=best)
                if offsets[first + 1] <= stop:
                    scores[first - 1] = best.sum(dtype=np.float32) if np.isfinite(best).all() else 0
                    best.fill(-np.inf)
            first += 1
        await asyncio.sleep(0)
    return scores


async def _kept(values: NDArray[np.float32], offsets: NDArray[np.int32], counts: NDArray[np.bool_]) -> Rows:
    """The rows [N, D] of the tokens that count."""
    totals = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=totals[1:])
    kept = np.empty((totals[-1], values.shape[1]), np.float32)
    step = max(1, _FLOATS_A_SLICE // values.shape[1])
    for start in range(0, len(counts), step):
        stop = min(start + step, len(counts))
        kept[totals[start] : totals[stop]] = values[start:stop][counts[start:stop]]
        await asyncio.sleep(0)
    return Rows(kept, totals[offsets])
