"""Embeddings of what can be embedded, for requests whose wrong items must not fail the others.

An item that is empty, is too long, is no text in UTF-8 or can't be tokenized has an error and a row of zeros, or no
rows of tokens. What fails later, in an engine, fails the request.
"""

import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from engine.types import OutputKind
from server.requests.errors import IS_NO_TEXT, EmptyInput, MalformedBody, RequestError
from server.requests.inputs.late_chunks import embed_late_chunks
from server.requests.inputs.windows import embed_in_windows
from server.requests.pipeline import Pipeline
from server.requests.refusals import text_error
from server.requests.rows import finish
from server.requests.trace import Trace
from server.requests.work import Chunking, Embedded, EmbedRequest
from tokenizer_pool.messages import Refusal, TextRefused, Truncation
from tokenizer_pool.token_ids import TokenizedTexts, join, offsets_of
from wire.vocabulary import RequestClass

# Stands in the place of a text that no decoder takes. No client knows it.
UNREADABLE = secrets.token_hex(16)


class _NothingLeft(Exception):
    """Every item has an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part(EmbedRequest):
    """A request of which only the items at some places are computed. Both are filled in when it is tokenized."""

    places: list[int]
    failed: dict[int, RequestError]

    def name_of(self, index: int) -> str:
        """Of a computed item."""
        return EmbedRequest.name_of(self, self.places[index] if index >= 0 else index)


def embed(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Awaitable[Embedded]:
    """Rows for any request for embeddings. Raises RequestError; cancelling it drops the work everywhere."""
    if request.chunking is Chunking.WINDOWS:
        return embed_in_windows(pipeline, request, trace)
    if request.chunking is Chunking.LATE:
        return embed_late_chunks(pipeline, request, trace)
    return _embed_what_can_be(pipeline, request, trace) if request.allows_errors else pipeline.embed(request, trace)


async def _embed_what_can_be(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    request = await pipeline.with_own_ids(request, trace)
    given = {field.name: getattr(request, field.name) for field in fields(EmbedRequest)}
    part = _Part(**given, places=[], failed={})
    try:
        computed = await pipeline.compute(part, trace, tokenize=partial(_tokenize, pipeline, part, key=trace.key))
    except _NothingLeft:
        return _without_rows(part)
    rows = computed.results[request.outputs]
    values, truncated = finish(rows.values, request), np.zeros(request.num_items, np.uint8)
    truncated[part.places] = computed.tokens.truncated
    if rows.offsets is not None:
        seqlens = np.zeros(request.num_items, np.int32)
        seqlens[part.places] = np.diff(rows.offsets)
        return Embedded(values, computed.num_tokens, truncated, offsets_of(seqlens), failed=part.failed)
    placed = np.zeros((request.num_items, values.shape[1]), np.float32)
    placed[part.places] = values
    return Embedded(placed, computed.num_tokens, truncated, failed=part.failed)


def _without_rows(part: _Part) -> Embedded:
    """Where every item has an error."""
    truncated = np.zeros(part.num_items, np.uint8)
    if part.outputs is OutputKind.POOLED:
        rows = np.zeros((part.num_items, part.width or part.model.dimensions), np.float32)
        return Embedded(rows, 0, truncated, failed=part.failed)
    rows = np.zeros((0, part.model.token_dimensions or part.model.dimensions), np.float32)
    return Embedded(rows, 0, truncated, np.zeros(part.num_items + 1, np.int32), failed=part.failed)


async def _tokenize(pipeline: Pipeline, part: _Part, request_class: RequestClass, *, key: str) -> TokenizedTexts:
    """Ids of the items that can be computed. Raises TextRefused for what concerns no single item."""
    texts, ids = part.texts, part.token_ids
    for place in range(part.num_items):
        param, text = EmbedRequest.name_of(part, place), texts[place] if texts is not None else ""
        if UNREADABLE in text:
            part.failed[place] = MalformedBody(f"{param} {IS_NO_TEXT}", param=param)
        elif not text and not (ids is not None and ids[place]):
            part.failed[place] = EmptyInput(f"{param} must not be empty", param=param)
    places = [place for place in range(part.num_items) if place not in part.failed]
    # Texts that are too long are found by what would be cut off: a refusal names only one of them.
    asked = replace(part, truncation=Truncation.RIGHT) if part.truncation is Truncation.NONE else part
    found = await _tokenize_places(pipeline, asked, places, request_class, key=key)
    if not found:
        raise _NothingLeft
    tokens = join(found)
    part.places.extend(place for place in places if place not in part.failed)
    return tokens if part.truncation is not Truncation.NONE else _without_long(part, tokens)


async def _tokenize_places(
    pipeline: Pipeline, part: _Part, places: Sequence[int], request_class: RequestClass, *, key: str
) -> list[TokenizedTexts]:
    """Ids of the items at these places. If one is refused, the others are tried again in two halves."""
    if not places:
        return []
    texts = [part.texts[place] for place in places] if part.texts is not None else []
    ids = [part.token_ids[place] for place in places] if part.token_ids is not None else []
    asked = replace(part, texts=texts if any(texts) else None, token_ids=ids if any(ids) else None)
    try:
        return [await pipeline.token_ids(asked, request_class, key=key)]
    except TextRefused as refused:
        if refused.index < 0:
            raise
        place = places[refused.index]
        part.failed[place] = _error(part, place, refused)
    others = [other for other in places if other != place]
    half = len(others) // 2
    return [
        *await _tokenize_places(pipeline, part, others[:half], request_class, key=key),
        *await _tokenize_places(pipeline, part, others[half:], request_class, key=key),
    ]


def _error(part: _Part, place: int, refused: TextRefused) -> RequestError:
    return text_error(refused, lambda index: EmbedRequest.name_of(part, place), part.model)


def _without_long(part: _Part, tokens: TokenizedTexts) -> TokenizedTexts:
    """Raises _NothingLeft."""
    is_whole = tokens.truncated == 0
    if is_whole.all():
        return tokens
    for place in (place for place, whole in zip(part.places, is_whole.tolist(), strict=True) if not whole):
        part.failed[place] = _error(part, place, TextRefused(Refusal.TOO_LONG, 0, max_tokens=part.max_seqlen))
    part.places[:] = [place for place in part.places if place not in part.failed]
    if not part.places:
        raise _NothingLeft
    seqlens = np.diff(tokens.offsets)
    is_kept, types = np.repeat(is_whole, seqlens), tokens.token_type_ids
    return TokenizedTexts(
        tokens.token_ids[is_kept],
        offsets_of(seqlens[is_whole]),
        tokens.truncated[is_whole],
        None if types is None else types[is_kept],
    )
