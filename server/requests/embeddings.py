"""Every request for embeddings: one sequence of each text, windows of long texts, late chunks, or what can be embedded.

- Where a request allows it, an item that is empty, is too long, is no text in UTF-8 or can't be tokenized has an error
  and a row of zeros, or no rows of tokens. What fails later, in an engine, fails the request.
- Windows are for texts that are longer than the model takes. A window has as many tokens as the model takes, with the
  special tokens and the prompt of the whole text around it. Its row counts by its tokens of the text itself. Rows are
  averaged as the model pools them, and scaled afterwards.
- With late chunking the texts of a request are the chunks of one, which is computed as a whole. Each chunk's row is the
  mean of the rows of its tokens, so it knows of the chunks around it. Special tokens and the prompt are in no chunk. A
  model that was trained on chunks has a token of its own between them. https://arxiv.org/abs/2409.04701. The texts may
  also be those of several documents: then each document is computed as a whole, and one of a single text has the row
  that the model gives it.
- With chunks of a fixed size a text is cut after every so many tokens, and its special tokens and its prompt count too.
"""

import secrets
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from engine.types import OutputKind
from server.requests.errors import IS_NO_TEXT, EmptyInput, InvalidRequest, MalformedBody, RequestError, UnsupportedTask
from server.requests.late_interaction import rows_that_count
from server.requests.limits import TimeSlice, in_steps
from server.requests.pipeline import Pipeline
from server.requests.refusals import details_error, text_error
from server.requests.work import (
    Chunking,
    Computed,
    Embedded,
    EmbedRequest,
    TokenizeRequest,
    Trace,
    check_token_rows,
    finish,
    text_of,
)
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import Token, TokenizedTexts, offsets_of
from tokenizer_pool.token_ids import SLICE_IDS, join
from wire.parts import Part
from wire.records import light_dataclass
from wire.vocabulary import RequestClass

# Stands in the place of a text that no decoder takes. No client knows it.
UNREADABLE = secrets.token_hex(16)
_LEAST_COSINE = 0.999  # between the mean of all tokens and the row: engines may round to bfloat16 in between
_Ids = NDArray[np.int32]


def embed_any(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Awaitable[Embedded]:
    """Rows for any request for embeddings. Raises RequestError; cancelling it drops the work everywhere.

    Rows of tokens are ragged float32 [N, D] with offsets [S + 1]. With MULTI_VECTOR they are of those that count for
    late interaction: the first request.num_queries texts are queries, the others documents. They get the model's
    markers and lengths; ids are taken as they are.
    """
    if request.chunking is Chunking.WINDOWS:
        return embed_in_windows(pipeline, request, trace)
    if request.chunking is Chunking.LATE or request.chunking is Chunking.DOCUMENTS:
        return embed_late_chunks(pipeline, request, trace)
    if request.chunking is Chunking.FIXED:
        return embed_fixed_chunks(pipeline, request, trace)
    if request.outputs is OutputKind.MULTI_VECTOR:
        return _embed_for_late_interaction(pipeline, request, trace)
    return _embed_what_can_be(pipeline, request, trace) if request.allows_errors else pipeline.embed(request, trace)


async def _embed_for_late_interaction(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    return await rows_that_count(await pipeline.compute(request, trace), request)


class _NothingLeft(Exception):
    """Every item has an error."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class _Part(EmbedRequest):
    """A request of which only the items at some places are computed. Both are filled in when it is tokenized."""

    places: list[int]
    failed: dict[int, RequestError]

    def name_of(self, index: int) -> str:
        """The name of a computed item."""
        return EmbedRequest.name_of(self, self.places[index] if index >= 0 else index)


async def _embed_what_can_be(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    request = await pipeline.with_own_ids(request, trace)
    given = {field.name: getattr(request, field.name) for field in fields(EmbedRequest)}
    part = _Part(**given, places=[], failed={})
    try:
        computed = await pipeline.compute(part, trace, tokenize=partial(_tokenize_part, pipeline, part))
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
    """The result where every item has an error."""
    truncated = np.zeros(part.num_items, np.uint8)
    if part.outputs is OutputKind.POOLED:
        rows = np.zeros((part.num_items, part.width or part.model.dimensions), np.float32)
        return Embedded(rows, 0, truncated, failed=part.failed)
    rows = np.zeros((0, part.model.token_dimensions or part.model.dimensions), np.float32)
    return Embedded(rows, 0, truncated, np.zeros(part.num_items + 1, np.int32), failed=part.failed)


async def _tokenize_part(pipeline: Pipeline, part: _Part, request_class: RequestClass) -> TokenizedTexts:
    """Make ids of the items that can be computed. Raises TextRefused for what concerns no single item."""
    for place, item in enumerate(part.items):
        param = EmbedRequest.name_of(part, place)
        if UNREADABLE in text_of(item):
            part.failed[place] = MalformedBody(f"{param} {IS_NO_TEXT}", param=param)
        elif not item:
            part.failed[place] = EmptyInput(f"{param} must not be empty", param=param)
    places = [place for place in range(part.num_items) if place not in part.failed]
    # Texts that are too long are found by what would be cut off: a refusal names only one of them.
    asked = replace(part, truncation=Truncation.RIGHT) if part.truncation is Truncation.NONE else part
    found = await _tokenize_places(pipeline, asked, places, request_class)
    if not found:
        raise _NothingLeft
    tokens = join(found)
    part.places.extend(place for place in places if place not in part.failed)
    return tokens if part.truncation is not Truncation.NONE else _without_long(part, tokens)


async def _tokenize_places(
    pipeline: Pipeline, part: _Part, places: Sequence[int], request_class: RequestClass
) -> list[TokenizedTexts]:
    """Make ids of the items at these places. If one is refused, the others are tried again in two halves."""
    if not places:
        return []
    asked = replace(part, items=[part.items[place] for place in places])
    try:
        return [await pipeline.token_ids(asked, request_class)]
    except TextRefused as refused:
        if refused.index < 0:
            raise
        place = places[refused.index]
        part.failed[place] = _error(part, place, refused)
    others = [other for other in places if other != place]
    half = len(others) // 2
    return [
        *await _tokenize_places(pipeline, part, others[:half], request_class),
        *await _tokenize_places(pipeline, part, others[half:], request_class),
    ]


def _error(part: _Part, place: int, refused: TextRefused) -> RequestError:
    return text_error(refused, lambda index: EmbedRequest.name_of(part, place), part.model)


def _without_long(part: _Part, tokens: TokenizedTexts) -> TokenizedTexts:
    """The tokens of the texts that are not too long. Raises _NothingLeft."""
    is_whole = tokens.truncated == 0
    if is_whole.all():
        return tokens
    for place in (place for place, whole in zip(part.places, is_whole.tolist(), strict=True) if not whole):
        part.failed[place] = _error(part, place, TextRefused(TextRefusal.TOO_LONG, 0, max_tokens=part.max_seqlen))
    part.places[:] = [place for place in part.places if place not in part.failed]
    if not part.places:
        raise _NothingLeft
    return tokens.taken(np.flatnonzero(is_whole))


@light_dataclass(frozen=True, slots=True, kw_only=True)
class InSequences(EmbedRequest):
    """A request whose texts are computed in other sequences than one for each."""

    item_of: list[int]  # of which item a sequence is a part, -1 = of all; filled in when the request is tokenized

    @classmethod
    def of(cls, request: EmbedRequest, **changes: Any) -> Self:
        """A request of this class with the fields of another."""
        return cls(**{field.name: getattr(request, field.name) for field in fields(EmbedRequest)} | changes, item_of=[])

    @property
    def max_num_tokens(self) -> int:
        """The number of tokens, not known before the request is tokenized."""
        return sys.maxsize

    def name_of(self, index: int) -> str:
        """The name of a sequence; of an item while it is not tokenized."""
        return EmbedRequest.name_of(self, self.item_of[index] if self.item_of and index >= 0 else index)


@dataclass(frozen=True, slots=True)
class Framed:
    """One text: int32 ids of what stands before it (special tokens, the prompt), of itself, and of what follows."""

    head: NDArray[np.int32]
    content: NDArray[np.int32]
    tail: NDArray[np.int32]

    @property
    def num_around(self) -> int:
        """The number of tokens before and after the content."""
        return len(self.head) + len(self.tail)


async def framed(texts: Sequence[Sequence[Token]], *, num_prompt_chars: int) -> list[Framed]:
    """The texts, each with so many characters of a prompt before it. Many tokens are taken in slices."""
    found, time_slice = [], TimeSlice()
    for tokens in texts:
        ids = np.empty(len(tokens), np.int32)
        for start in range(0, len(tokens), SLICE_IDS):
            part = tokens[start : start + SLICE_IDS]
            ids[start : start + len(part)] = [token.token_id for token in part]
            await time_slice.end_if_over()
        first, last = 0, len(tokens)
        while first < last and _is_before(tokens[first], num_prompt_chars):
            first += 1
        while last > first and tokens[last - 1].is_special:
            last -= 1
        found.append(Framed(ids[:first], ids[first:last], ids[last:]))
    return found


def _is_before(token: Token, num_prompt_chars: int) -> bool:
    """Whether it is a special token or the prompt's. One with a part of both is the text's."""
    return token.stop is None or 0 < num_prompt_chars >= token.stop


async def embed_in_windows(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    """Computes rows of whole texts, however long. Raises RequestError; cancelling it drops the work everywhere."""
    sequences = InSequences.of(request)
    weights: list[int] = []
    computed = await pipeline.compute(
        sequences, trace, tokenize=partial(_tokenize_windows, pipeline, sequences, weights)
    )
    rows = computed.results[OutputKind.POOLED].values
    if len(rows) > request.num_items:
        rows = averages(rows, np.array(sequences.item_of), np.array(weights))
    return Embedded(finish(rows, request), computed.num_tokens, np.zeros(request.num_items, np.uint8))


def averages(rows: NDArray[np.float32], items: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.float32]:
    """The average row of each item, float32, by the weights [S] of its sequences. `items` [S] counts up from 0."""
    starts = np.searchsorted(items, np.arange(items[-1] + 1))
    shares = weights / np.add.reduceat(weights, starts)[items]  # exactly 1 where an item has one sequence
    averaged: NDArray[np.float32] = np.add.reduceat(rows * shares.astype(np.float32)[:, None], starts)
    return averaged


async def _tokenize_windows(
    pipeline: Pipeline, request: InSequences, weights: list[int], request_class: RequestClass
) -> TokenizedTexts:
    """The ids of all windows; whose they are and what they count is added to the lists. Raises TextRefused."""
    cut = await pipeline.token_ids(replace(request, truncation=Truncation.RIGHT), request_class)
    whole = await _long_texts(pipeline, request, np.flatnonzero(cut.truncated).tolist(), request_class)
    ids, items = list[_Ids](), list[int]()
    parts: dict[Part, list[NDArray[Any]]] = {part: [] for part in cut.parts}
    time_slice = TimeSlice()
    for item, (start, stop) in enumerate(pairwise(cut.offsets.tolist())):
        its_ids, its_weights = [cut.token_ids[start:stop]], [1]
        its_parts = {part: [values[start:stop]] for part, values in cut.parts.items()}
        if (text := whole.get(item)) is not None:
            contents = _contents(text, item, max_seqlen=request.max_seqlen)
            its_weights = list(map(len, contents))
            its_ids = [np.concatenate((text.head, content, text.tail)) for content in contents]
            its_parts = {
                part: [_around(text, values, length) for length in its_weights] for part, (values,) in its_parts.items()
            }
        ids += its_ids
        for part, of_windows in its_parts.items():
            parts[part] += of_windows
        weights += its_weights
        items += [item] * len(its_weights)
        await time_slice.end_if_over()
    request.item_of.extend(items)
    return TokenizedTexts(
        np.concatenate(ids),
        offsets_of(np.fromiter(map(len, ids), np.int32, len(ids))),
        np.zeros(len(ids), np.uint8),
        {part: np.concatenate(of_windows) for part, of_windows in parts.items()},
    )


async def _details(
    pipeline: Pipeline, request: EmbedRequest | InSequences, places: Sequence[int], request_class: RequestClass
) -> list[list[Token]]:
    """The tokens of the texts at these places, with their characters. Raises RequestError."""
    texts = request.texts
    asked = TokenizeRequest(
        model=request.model,
        items=[texts[place] for place in places],
        prompt=request.prompt,
        add_special_tokens=request.add_special_tokens,
        field=request.field,
        is_single=request.is_single,
        context=request.context,
    )
    try:
        return await pipeline.token_details(asked, request_class)
    except TextRefused as refused:
        raise details_error(refused.moved(places), asked) from None


async def _long_texts(
    pipeline: Pipeline, request: InSequences, items: list[int], request_class: RequestClass
) -> dict[int, Framed]:
    """The tokens of these items, all of them. Raises RequestError."""
    if not items:
        return {}
    tokens = await _details(pipeline, request, items, request_class)
    return dict(zip(items, await framed(tokens, num_prompt_chars=len(request.prompt)), strict=True))


def _contents(text: Framed, item: int, *, max_seqlen: int) -> list[_Ids]:
    """The tokens of the text in each window. Raises TextRefused."""
    room = max_seqlen - text.num_around
    if room < 1:
        raise TextRefused(TextRefusal.NO_ROOM, item, num_tokens=text.num_around, max_tokens=max_seqlen)
    return [text.content[start : start + room] for start in range(0, len(text.content), room)]


def _around(text: Framed, of_cut: NDArray[Any], length: int) -> NDArray[Any]:
    """A part of a window with so many tokens of the text: around them as it is where the text is only cut. The text's
    own tokens have none, as marks of prompts and the types of a single text are."""
    before, after = of_cut[: len(text.head)], of_cut[len(of_cut) - len(text.tail) :]
    return np.concatenate((before, np.zeros(length, of_cut.dtype), after))


async def embed_late_chunks(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    """A row for each text. Raises RequestError; cancelling it drops the work everywhere."""
    together = InSequences.of(request, outputs=OutputKind.POOLED | OutputKind.TOKENS, truncation=Truncation.NONE)
    bounds: list[NDArray[np.int32]] = []
    computed = await pipeline.compute(together, trace, tokenize=partial(_tokenize_chunks, pipeline, together, bounds))
    rows = await _means(computed, bounds, request.field if request.document_sizes else "late_chunking")
    return Embedded(finish(rows, request), computed.num_tokens, np.zeros(request.num_items, np.uint8))


async def _means(computed: Computed, bounds: Sequence[NDArray[np.int32]], field: str) -> NDArray[np.float32]:
    """The means of the rows of tokens in each chunk, float32 [chunks, D]. For each sequence `bounds` are where each of
    its chunks begins and ends among all tokens; a sequence without any has its own row. Raises UnsupportedTask."""
    of_tokens, rows = computed.results[OutputKind.TOKENS].values, computed.results[OutputKind.POOLED].values
    means, time_slice = list[NDArray[np.float32]](), TimeSlice()
    for row, (start, stop), own in zip(rows, pairwise(computed.tokens.offsets.tolist()), bounds, strict=True):
        if not len(own):
            means.append(row[None])
            continue
        if not await _is_mean(of_tokens[start:stop], row):
            raise UnsupportedTask(
                f"this model has no chunks for {field}: its row of a text is not the mean of its tokens' rows",
                param=field,
            )
        for begin, end in own.reshape(-1, 2).tolist():
            means.append((await _mean(of_tokens[begin:end]))[None])
            await time_slice.end_if_over()
    return np.concatenate(means)


async def _mean(of_tokens: NDArray[np.float32]) -> NDArray[np.float32]:
    total = np.zeros(of_tokens.shape[1], np.float32)
    # By `sum`: `reduceat` adds rows up one number at a time, which takes seconds for a long text.
    await in_steps(len(of_tokens), len(total), lambda part: np.add(total, of_tokens[part].sum(axis=0), out=total))
    return total / np.float32(len(of_tokens))


async def _is_mean(of_tokens: NDArray[np.float32], row: NDArray[np.float32]) -> bool:
    """Whether the model's own row is the mean of those of the tokens [T, D]: no other pooling, no head behind it."""
    if of_tokens.shape[1] != len(row):
        return False
    mean = await _mean(of_tokens)
    lengths = float(np.linalg.norm(mean) * np.linalg.norm(row))
    return float(mean @ row) >= _LEAST_COSINE * lengths


async def _tokenize_chunks(
    pipeline: Pipeline, request: InSequences, bounds: list[NDArray[np.int32]], request_class: RequestClass
) -> TokenizedTexts:
    """The ids of each document in a sequence; where its chunks are is added to `bounds`. A document of one text is
    tokenized as any text is, and has no chunks.

    Raises InvalidRequest and TextRefused.
    """
    sizes = request.document_sizes or [request.num_items]
    spans = [range(stop - size, stop) for size, stop in zip(sizes, np.cumsum(sizes).tolist(), strict=True)]
    alone = [at for at, span in enumerate(spans) if request.document_sizes and len(span) == 1]
    several = [at for at, span in enumerate(spans) if not request.document_sizes or len(span) > 1]
    chunks = await _framed_chunks(pipeline, request, [spans[at] for at in several], request_class)
    sequences, edges = list[TokenizedTexts](), dict[int, NDArray[np.int32]]()
    for at in several:
        sequence, edges[at] = _in_sequence(request, at, spans[at], chunks)
        sequences.append(sequence)
    if alone:
        places = [spans[at][0] for at in alone]
        try:
            asked = replace(request, items=[request.items[place] for place in places])
            sequences.append(await pipeline.token_ids(asked, request_class))
        except TextRefused as refused:
            raise refused.moved(places) from None
    tokens = join(sequences).taken(np.argsort([*several, *alone]))
    for at, start in enumerate(tokens.offsets[:-1]):
        bounds.append(start + edges.get(at, np.empty(0, np.int32)))
        request.item_of.append(spans[at][0] if request.document_sizes else -1)
    return tokens


def _in_sequence(
    request: InSequences, document: int, places: range, chunks: dict[int, Framed]
) -> tuple[TokenizedTexts, NDArray[np.int32]]:
    """The chunks at these places in one sequence, with what is around the first of them; and where each begins and ends
    in it, one after the other. Raises InvalidRequest and TextRefused."""
    first, contents = chunks[places[0]], [chunks[place].content for place in places]
    lengths = list(map(len, contents))
    if not all(lengths):
        raise TextRefused(TextRefusal.EMPTY, places[lengths.index(0)])
    between = np.array([] if (own := request.model.chunk_separator_id) is None else [own], np.int32)
    separated = [part for content in contents for part in (between, content)][1:]
    ids = np.concatenate((first.head, *separated, first.tail))
    if len(ids) > request.max_seqlen:
        param, taker = request.field, "late_chunking takes"
        if request.document_sizes:
            param, taker = f"{param}[{document}]", "a document may have"
        raise InvalidRequest(
            f"{param} has {len(ids)} tokens together, and {taker} {request.max_seqlen} at most", param=param
        )
    whole = TokenizedTexts(ids, np.array([0, len(ids)], np.int32), np.zeros(1, np.uint8))
    return whole, np.cumsum(list(map(len, (first.head, *separated))), dtype=np.int32)


async def _framed_chunks(
    pipeline: Pipeline, request: InSequences, documents: Sequence[range], request_class: RequestClass
) -> dict[int, Framed]:
    """The chunks at the places of these documents; the first one of each has the prompt before it.

    Raises TextRefused.
    """
    found, texts = dict[int, Framed](), request.texts
    firsts = [places[0] for places in documents]
    others = [place for places in documents for place in places[1:]]
    groups = [(firsts, request.prompt), (others, "")] if request.prompt else [(firsts + others, "")]
    for places, prompt in groups:
        if not places:
            continue
        asked = TokenizeRequest(
            model=request.model,
            items=[texts[place] for place in places],
            prompt=prompt,
            add_special_tokens=request.add_special_tokens,
            context=request.context,
        )
        try:
            tokens = await pipeline.token_details(asked, request_class)
        except TextRefused as refused:
            raise refused.moved(places) from None
        found |= zip(places, await framed(tokens, num_prompt_chars=len(prompt)), strict=True)
    return found


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a text: its tokens, special ones and the prompt's included, and its characters in the text alone, None
    if it has none. Both are the first one and the one behind the last."""

    token_range: tuple[int, int]
    char_range: tuple[int, int] | None


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Embedded):
    """Rows of chunks, with offsets."""

    chunks: Sequence[Sequence[Chunk]]  # of each text


async def embed_fixed_chunks(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Chunked:
    """A row for so many tokens of each text at a time, counted as vLLM does.

    Raises RequestError; cancelling it drops the work everywhere.
    """
    whole = replace(request, outputs=OutputKind.POOLED | OutputKind.TOKENS, truncation=Truncation.NONE)
    size, chunks = min(request.chunk_size, request.max_seqlen), list[list[Chunk]]()
    computed = await pipeline.compute(
        whole, trace, tokenize=partial(_tokenize_with_chunks, pipeline, whole, size, chunks)
    )
    spans = pairwise(computed.tokens.offsets.tolist())
    bounds = [np.array([*range(start, stop, size), stop], np.int32).repeat(2)[1:-1] for start, stop in spans]
    rows = await _means(computed, bounds, "late_chunking_params")
    return Chunked(
        rows=finish(rows, request),
        num_tokens=computed.num_tokens,
        truncated=computed.tokens.truncated,
        offsets=offsets_of(np.fromiter(map(len, chunks), np.int32, len(chunks))),
        chunks=chunks,
    )


async def _tokenize_with_chunks(
    pipeline: Pipeline, request: EmbedRequest, size: int, chunks: list[list[Chunk]], request_class: RequestClass
) -> TokenizedTexts:
    """The ids of each text; its chunks are added to the list. Raises RequestError and TextRefused."""
    tokens = await pipeline.token_ids(request, request_class)
    check_token_rows(request, tokens)
    details = await _details(pipeline, request, range(request.num_items), request_class)
    time_slice = TimeSlice()
    for each, seqlen in zip(details, np.diff(tokens.offsets).tolist(), strict=True):
        assert len(each) == seqlen, "a text has the same tokens whoever asks"
        own = list[Chunk]()
        for start in range(0, seqlen, size):
            stop = min(start + size, seqlen)
            own.append(Chunk((start, stop), _characters(each[start:stop], len(request.prompt))))
            await time_slice.end_if_over()
        chunks.append(own)
    return replace(tokens, parts={})  # no marks of the prompt, which is in chunks


def _characters(tokens: Sequence[Token], num_prompt_chars: int) -> tuple[int, int] | None:
    """The characters that these tokens stand for, of the text without the prompt before it."""
    places = [
        (max(token.start - num_prompt_chars, 0), token.stop - num_prompt_chars)
        for token in tokens
        if token.start is not None and token.stop is not None and token.stop > max(token.start, num_prompt_chars)
    ]
    return (min(start for start, _ in places), max(stop for _, stop in places)) if places else None
