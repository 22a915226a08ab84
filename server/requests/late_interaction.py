"""Late interaction: the tokens of queries and documents, which of their rows count, and how MaxSim compares them.

Numbers only: knows nothing of texts or engines. Long requests are done in slices.

Shape legend: S sequences, T tokens of all of them, N rows of all of them, Q rows of the query, D numbers in a row.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import LateInteraction
from engine.types import OutputKind, Rows
from server.requests.limits import NUMBERS_A_STEP, TimeSlice, steps
from server.requests.work import Computed, Embedded, Work
from tokenizer_pool.tasks import TokenizedTexts
from tokenizer_pool.token_ids import join
from wire.parts import EXPANSION_TOKEN, QUERY_TOKEN


@dataclass(frozen=True, slots=True)
class Lengths:
    """The most tokens that the tokenizer may make of a text, special ones included: its marker is added later."""

    query: int
    document: int


def lengths(late: LateInteraction | None, max_seqlen: int) -> Lengths | None:
    """Returns None where a model has no lengths of its own for queries and documents."""
    if late is None or late == LateInteraction(skipped_ids=late.skipped_ids, skips_first=late.skips_first):
        return None
    return Lengths(
        min(late.query_length or max_seqlen, max_seqlen) - (late.query_marker_id is not None),
        min(late.document_length or max_seqlen, max_seqlen) - (late.document_marker_id is not None),
    )


async def shaped(
    tokens: TokenizedTexts, late: LateInteraction, *, num_queries: int, max_seqlen: int, num_leading: int = 1
) -> TokenizedTexts:
    """Inserts markers and fills queries up. The first `num_queries` texts are queries; all are cut to `lengths`.

    num_leading  tokens of each text that stand before its marker
    """
    longest = late.expansion_length or late.query_length or 0
    fill_length = min(longest, max_seqlen) if late.expansion_id is not None else 0
    done = []
    async for part in _steps(tokens, slice(0, num_queries)):
        done.append(_filled(_marked(part, late.query_marker_id, num_leading), late, fill_length))
    async for part in _steps(tokens, slice(num_queries, None)):
        done.append(_marked(part, late.document_marker_id, num_leading))
    return join(done)


def marked_queries(tokens: TokenizedTexts, *, num_queries: int) -> TokenizedTexts:
    """Marks the first `num_queries` texts, for engines that look up the tokens of queries."""
    return tokens.marked(slice(int(tokens.offsets[num_queries])), QUERY_TOKEN)


def counted(tokens: TokenizedTexts, late: LateInteraction | None, *, num_queries: int) -> NDArray[np.bool_] | None:
    """The tokens [T] whose rows are compared; None = all."""
    if late is None or not (late.skips_first or late.skipped_ids):
        return None
    counts = np.ones(len(tokens.token_ids), np.bool_)
    if late.skipped_ids:
        start = int(tokens.offsets[num_queries])
        counts[start:] = ~np.isin(tokens.token_ids[start:], late.skipped_ids)
    if late.skips_first:
        counts[tokens.offsets[:-1]] = False
    return counts


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
    """The scores of S / 2 queries, which come first, each with a document of its own; float32 [S / 2]."""
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


async def _steps(tokens: TokenizedTexts, span: slice) -> AsyncIterator[TokenizedTexts]:
    """The texts in steps of about NUMBERS_A_STEP tokens, each of at least one text."""
    time_slice = TimeSlice()
    first, last, _ = span.indices(len(tokens.truncated))
    while first < last:
        bound = int(tokens.offsets[first]) + NUMBERS_A_STEP
        stop = min(last, max(first + 1, int(np.searchsorted(tokens.offsets, bound, side="right")) - 1))
        yield tokens.between(first, stop)
        first = stop
        await time_slice.end_if_over()


def _marked(tokens: TokenizedTexts, marker_id: int | None, num_leading: int) -> TokenizedTexts:
    """The marker after the first `num_leading` tokens of each text."""
    if marker_id is None:
        return tokens
    places = tokens.offsets[:-1] + np.minimum(np.diff(tokens.offsets), num_leading)
    return tokens.inserted(places, np.ones(len(places), np.int32), marker_id)


def _filled(tokens: TokenizedTexts, late: LateInteraction, fill_length: int) -> TokenizedTexts:
    """The texts, each filled up at the end to `fill_length` tokens."""
    seqlens = np.diff(tokens.offsets)
    missing = np.maximum(fill_length - seqlens, 0)
    if not missing.any():
        return tokens
    places = np.repeat(tokens.offsets[1:], missing)
    filled = tokens.inserted(places, missing, late.expansion_id or 0)
    if late.attends_to_expansion:
        return filled
    positions = np.arange(len(filled.token_ids)) - np.repeat(filled.offsets[:-1], seqlens + missing)
    return filled.marked(positions >= np.repeat(seqlens, seqlens + missing), EXPANSION_TOKEN)
