"""Embeddings of texts that are longer than the model takes: in windows, of which the rows are averaged.

A window has as many tokens as the model takes, with the special tokens and the prompt of the whole text around it. Its
row counts by its tokens of the text itself. Rows are averaged as the model pools them, and scaled afterwards.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.types import OutputKind
from server.requests.inputs.framed import Framed, InSequences, framed
from server.requests.pipeline import Pipeline
from server.requests.refusals import details_error
from server.requests.rows import finish
from server.requests.time_slices import TimeSlice
from server.requests.trace import Trace
from server.requests.work import Embedded, EmbedRequest, TokenizeRequest
from tokenizer_pool.messages import Refusal, TextRefused, Truncation
from tokenizer_pool.token_ids import TokenizedTexts, offsets_of
from wire.vocabulary import RequestClass

_Ids = NDArray[np.int32]


async def embed_in_windows(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    """Rows of whole texts, however long. Raises RequestError; cancelling it drops the work everywhere."""
    sequences = InSequences.of(request)
    weights: list[int] = []
    computed = await pipeline.compute(
        sequences, trace, tokenize=partial(_tokenize, pipeline, sequences, weights, key=trace.key)
    )
    rows = computed.results[OutputKind.POOLED].values
    if len(rows) > request.num_items:
        rows = averages(rows, np.array(sequences.items), np.array(weights))
    return Embedded(finish(rows, request), computed.num_tokens, np.zeros(request.num_items, np.uint8))


def averages(rows: NDArray[np.float32], items: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.float32]:
    """The average row of each item, float32, by the weights [S] of its sequences. `items` [S] counts up from 0."""
    starts = np.searchsorted(items, np.arange(items[-1] + 1))
    shares = weights / np.add.reduceat(weights, starts)[items]  # exactly 1 where an item has one sequence
    averaged: NDArray[np.float32] = np.add.reduceat(rows * shares.astype(np.float32)[:, None], starts)
    return averaged


async def _tokenize(
    pipeline: Pipeline, request: InSequences, weights: list[int], request_class: RequestClass, *, key: str
) -> TokenizedTexts:
    """The ids of all windows; whose they are and what they count is added to the lists. Raises TextRefused."""
    cut = await pipeline.token_ids(replace(request, truncation=Truncation.RIGHT), request_class, key=key)
    whole = await _long_texts(pipeline, request, np.flatnonzero(cut.truncated).tolist(), request_class)
    all_types = np.zeros_like(cut.token_ids) if cut.token_type_ids is None else cut.token_type_ids
    ids, types, items = list[_Ids](), list[_Ids](), list[int]()
    time_slice = TimeSlice()
    for item, (start, stop) in enumerate(pairwise(cut.offsets.tolist())):
        its_ids, its_types, its_weights = [cut.token_ids[start:stop]], [all_types[start:stop]], [1]
        if (text := whole.get(item)) is not None:
            contents = _contents(text, item, max_seqlen=request.max_seqlen)
            its_weights = list(map(len, contents))
            its_ids = [np.concatenate((text.head, content, text.tail)) for content in contents]
            its_types = [_types(text, all_types[start:stop], length) for length in its_weights]
        ids += its_ids
        types += its_types
        weights += its_weights
        items += [item] * len(its_weights)
        await time_slice.end_if_over()
    request.items.extend(items)
    return TokenizedTexts(
        np.concatenate(ids),
        offsets_of(np.fromiter(map(len, ids), np.int32, len(ids))),
        np.zeros(len(ids), np.uint8),
        None if cut.token_type_ids is None else np.concatenate(types),
    )


async def _long_texts(
    pipeline: Pipeline, request: InSequences, items: list[int], request_class: RequestClass
) -> dict[int, Framed]:
    """These items with all their tokens. Raises RequestError."""
    assert request.texts is not None, "ids are refused at the edge"
    if not items:
        return {}
    asked = TokenizeRequest(
        model=request.model,
        texts=[request.texts[item] for item in items],
        prompt=request.prompt,
        add_special_tokens=request.add_special_tokens,
        field=request.field,
        is_single=request.is_single,
    )
    try:
        tokens = await pipeline.token_details(asked, request_class)
    except TextRefused as refused:
        refused.index = items[refused.index] if refused.index >= 0 else -1
        raise details_error(refused, asked) from None
    return dict(zip(items, await framed(tokens, num_prompt_chars=len(request.prompt)), strict=True))


def _contents(text: Framed, item: int, *, max_seqlen: int) -> list[_Ids]:
    """What of the text stands in each window. Raises TextRefused."""
    room = max_seqlen - text.num_around
    if room < 1:
        raise TextRefused(Refusal.NO_ROOM, item, num_tokens=text.num_around, max_tokens=max_seqlen)
    return [text.content[start : start + room] for start in range(0, len(text.content), room)]


def _types(text: Framed, of_cut: _Ids, length: int) -> _Ids:
    """The types of a window with so many tokens of the text: around them as they are where the text is only cut."""
    before, after = of_cut[: len(text.head)], of_cut[len(of_cut) - len(text.tail) :]
    return np.concatenate((before, np.zeros(length, np.int32), after))
