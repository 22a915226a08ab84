"""The tokens of queries and documents for late interaction, and which of their rows count.

Numbers only: knows nothing of texts, requests or engines. Long requests are done in slices.

Shape legend: S sequences, T tokens of all of them.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import LateInteraction
from engine.types import EXPANSION_TOKEN, QUERY_TOKEN
from server.requests.time_slices import NUMBERS_A_STEP, TimeSlice
from tokenizer_pool.messages import Refusal, TextRefused, Truncation
from tokenizer_pool.token_ids import TokenizedTexts, join, offsets_of


async def shaped(
    tokens: TokenizedTexts, late: LateInteraction, *, num_queries: int, max_seqlen: int, truncation: Truncation
) -> TokenizedTexts:
    """Inserts markers, cuts all texts to length and fills queries up. The first `num_queries` texts are queries.

    What closes a text, its last token, stays where it is cut, and so does its first. Raises TextRefused (TOO_LONG)
    for what would have to be cut with Truncation.NONE.
    """
    if late == LateInteraction(skipped_ids=late.skipped_ids, skips_first=late.skips_first):
        return tokens  # the model needs none of this
    queries, documents = _forms(late, max_seqlen)
    done = []
    for span, form in ((slice(0, num_queries), queries), (slice(num_queries, None), documents)):
        first = span.start
        async for part in _steps(tokens, span):
            if form.max_content is not None:
                part = _cut(part, form.max_content, truncation, first=first)
            first += len(part.truncated)
            done.append(_filled(_marked(part, form.marker_id), form))
    return join(done)


def marked_queries(tokens: TokenizedTexts, *, num_queries: int) -> TokenizedTexts:
    """For engines that look up the tokens of queries: the first `num_queries` texts marked."""
    types = tokens.token_type_ids
    types = np.zeros(len(tokens.token_ids), np.int32) if types is None else types.copy()
    types[: tokens.offsets[num_queries]] |= QUERY_TOKEN
    return replace(tokens, token_type_ids=types)


def counted(tokens: TokenizedTexts, late: LateInteraction | None, *, num_queries: int) -> NDArray[np.bool_] | None:
    """[T], whose rows are compared; None = all."""
    if late is None or not (late.skips_first or late.skipped_ids):
        return None
    counts = np.ones(len(tokens.token_ids), np.bool_)
    if late.skipped_ids:
        start = int(tokens.offsets[num_queries])
        counts[start:] = ~np.isin(tokens.token_ids[start:], late.skipped_ids)
    if late.skips_first:
        counts[tokens.offsets[:-1]] = False
    return counts


@dataclass(frozen=True, slots=True)
class _Form:
    """How a text's tokens are changed."""

    max_content: int | None  # tokens without the marker; None = no limit
    marker_id: int | None
    fill_length: int = 0  # in tokens; shorter texts are filled up to it
    fill_id: int = 0
    fill_type: int = 0


def _forms(late: LateInteraction, max_seqlen: int) -> tuple[_Form, _Form]:
    """The forms of queries and of documents."""
    query_length = min(late.query_length or max_seqlen, max_seqlen)
    document_length = min(late.document_length or max_seqlen, max_seqlen)
    fills = late.query_length is not None and late.expansion_id is not None
    queries = _Form(
        max_content=query_length - (late.query_marker_id is not None),
        marker_id=late.query_marker_id,
        fill_length=query_length if fills else 0,
        fill_id=late.expansion_id or 0,
        fill_type=0 if late.attends_to_expansion else EXPANSION_TOKEN,
    )
    return queries, _Form(document_length - (late.document_marker_id is not None), late.document_marker_id)


async def _steps(tokens: TokenizedTexts, span: slice) -> AsyncIterator[TokenizedTexts]:
    """The texts in steps of about NUMBERS_A_STEP tokens, each of at least one text."""
    time_slice = TimeSlice()
    first, last, _ = span.indices(len(tokens.truncated))
    while first < last:
        bound = int(tokens.offsets[first]) + NUMBERS_A_STEP
        stop = min(last, max(first + 1, int(np.searchsorted(tokens.offsets, bound, side="right")) - 1))
        start, end = int(tokens.offsets[first]), int(tokens.offsets[stop])
        types = None if tokens.token_type_ids is None else tokens.token_type_ids[start:end]
        offsets = tokens.offsets[first : stop + 1] - np.int32(start)
        yield TokenizedTexts(tokens.token_ids[start:end], offsets, tokens.truncated[first:stop], types)
        first = stop
        await time_slice.end_if_over()


def _cut(tokens: TokenizedTexts, length: int, truncation: Truncation, *, first: int) -> TokenizedTexts:
    """Each text cut to `length` tokens; the first of them is number `first` of its request."""
    seqlens = np.diff(tokens.offsets)
    is_long = seqlens > length
    if not is_long.any():
        return tokens
    if truncation is Truncation.NONE:
        index = int(np.argmax(is_long))
        raise TextRefused(Refusal.TOO_LONG, first + index, num_tokens=int(seqlens[index]), max_tokens=length)
    position = np.arange(len(tokens.token_ids), dtype=np.int32) - np.repeat(tokens.offsets[:-1], seqlens)
    to_end = np.repeat(seqlens, seqlens) - 1 - position
    if truncation is Truncation.LEFT:
        kept = (position == 0) | (to_end < length - 1)
    else:
        kept = (position < length - 1) | (to_end == 0)
    types = None if tokens.token_type_ids is None else tokens.token_type_ids[kept]
    offsets = offsets_of(np.minimum(seqlens, length))
    return TokenizedTexts(tokens.token_ids[kept], offsets, (tokens.truncated | is_long).astype(np.uint8), types)


def _marked(tokens: TokenizedTexts, marker_id: int | None) -> TokenizedTexts:
    """The marker, of type 0, after the first token of each text."""
    if marker_id is None:
        return tokens
    places = tokens.offsets[:-1] + np.minimum(np.diff(tokens.offsets), 1)
    ids = np.insert(tokens.token_ids, places, marker_id)
    types = None if tokens.token_type_ids is None else np.insert(tokens.token_type_ids, places, 0)
    return TokenizedTexts(ids, offsets_of(np.diff(tokens.offsets) + 1), tokens.truncated, types)


def _filled(tokens: TokenizedTexts, form: _Form) -> TokenizedTexts:
    """Each text filled up at the end."""
    seqlens = np.diff(tokens.offsets)
    missing = np.maximum(form.fill_length - seqlens, 0)
    if not missing.any():
        return tokens
    places = np.repeat(tokens.offsets[1:], missing)
    types = tokens.token_type_ids
    if types is None:
        types = np.zeros(len(tokens.token_ids), np.int32)
    return TokenizedTexts(
        np.insert(tokens.token_ids, places, form.fill_id),
        offsets_of(seqlens + missing),
        tokens.truncated,
        np.insert(types, places, form.fill_type) if form.fill_type or types.any() else tokens.token_type_ids,
    )
