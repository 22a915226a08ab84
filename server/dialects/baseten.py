"""Baseten's /predict_tokens: labels of tokens, or of spans of tokens.

https://docs.baseten.co/engines/bei/ner. Without aggregation the answer has an object for each token. Special tokens
are not in the text, so their start and end are 0. With aggregation it has the spans of transformers' pipeline.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from server.dialects.reading.inputs import read_single_texts
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.reading.text_options import TruncationFields, read_cut
from server.dialects.route import Answer, Call, Route
from server.dialects.row_answers import RAGGED, as_list, headers, ragged_answer
from server.dialects.row_forms import FLOATS, RAGGED_ONLY, numbers_as_json
from server.dialects.tei.shared import tei_error, timing_headers
from server.requests.classify import (
    Aggregation,
    ClassifyTokensRequest,
    ScoredTokens,
    Span,
    classify_tokens,
    labels_of,
    spans,
)
from server.requests.errors import InvalidRequest
from server.requests.time_slices import TimeSlice
from tokenizer_pool.tasks import Token

_TEXTS = {"type": "array", "items": {"type": "string"}}
_INPUTS = {"anyOf": [{"type": "string"}, _TEXTS, {"type": "array", "items": {**_TEXTS, "minItems": 1, "maxItems": 1}}]}
_NO_TOKEN = 0  # the id of a span, as Baseten has it


class PredictTokensBody(TruncationFields, kw_only=True):
    """The body of POST /predict_tokens."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_INPUTS)]
    raw_scores: bool | None = None  # every label's raw score of each token; None = the best one's probability
    aggregation_strategy: str | None = None  # None = none
    model: str | None = None  # ours


_BODY = FieldsReader(PredictTokensBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(ClassifyTokensRequest):
    aggregation: Aggregation


def decode(call: Call, body: bytes) -> _Request:
    """The request of a body. Raises RequestError, naming the field or index."""
    fields = _BODY.read(body)
    model = call.models.choose(fields.model)
    given = read_single_texts(fields.inputs, "inputs", max_items=call.max_items)
    call.set_form(offers=RAGGED_ONLY)
    return _Request(
        **call.common(model),
        texts=given.texts,
        **read_cut(fields, model),
        raw_scores=bool(fields.raw_scores),
        field="inputs",
        is_single=given.is_single,
        aggregation=_read_aggregation(fields, raw_bytes=call.form is not FLOATS),
    )


def _read_aggregation(fields: PredictTokensBody, *, raw_bytes: bool) -> Aggregation:
    try:
        aggregation = Aggregation(fields.aggregation_strategy or "none")
    except ValueError:
        known = ", ".join(Aggregation)
        raise InvalidRequest(f"aggregation_strategy must be one of {known}", param="aggregation_strategy") from None
    if aggregation is not Aggregation.NONE and (fields.raw_scores or raw_bytes):
        raise InvalidRequest(
            "aggregation_strategy must be none if raw scores or raw bytes are requested",
            param="aggregation_strategy",
        )
    return aggregation


async def encode(call: Call, request: _Request, labelled: ScoredTokens) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    timing = timing_headers(call.trace)
    if call.form.has_rows_alone:
        return await ragged_answer(labelled.scored, beside=timing)
    content = await _in_json(labelled, request)
    return Answer(200, [*headers(labelled.scored), *timing], content)


async def _in_json(labelled: ScoredTokens, request: _Request) -> bytes:
    rows, offsets = labelled.scored.rows, labelled.scored.offsets
    assert offsets is not None
    labels = labels_of(request.model, rows.shape[1])
    items, time_slice = [], TimeSlice()
    for text, tokens, (start, stop) in zip(
        request.texts or (), labelled.tokens, pairwise(offsets.tolist()), strict=True
    ):
        if request.aggregation is Aggregation.NONE:
            found = _of_tokens(tokens, rows[start:stop], labels, has_all=request.raw_scores)
        else:
            found = _of_spans(text, spans(tokens, rows[start:stop], labels, request.aggregation))
        entries = []
        for entry in found:
            entries.append(entry)
            await time_slice.end_if_over()
        items.append(as_list(entries))
    return as_list(items)


def _of_tokens(
    tokens: Sequence[Token], scores: NDArray[np.float32], labels: Sequence[str], *, has_all: bool
) -> Iterator[bytes]:
    """The predictions of each text, with every label, or with its best one."""
    names = [msgspec.json.encode(label) for label in labels]
    for token, row in zip(tokens, scores, strict=True):
        chosen = range(len(names)) if has_all else [int(row.argmax())]
        numbers = numbers_as_json(row[chosen])[1:-1].split(b",")
        results = b",".join(b"%b:%b" % (names[at], number) for at, number in zip(chosen, numbers, strict=True))
        yield _entry(token.text, token.token_id, token.start or 0, token.stop or 0, results)


def _of_spans(text: str, found: Iterator[Span]) -> Iterator[bytes]:
    for span in found:
        results = msgspec.json.encode({span.label: span.score})[1:-1]
        yield _entry(text[span.start : span.stop], _NO_TOKEN, span.start, span.stop, results)


def _entry(token: str, token_id: int, start: int, stop: int, results: bytes) -> bytes:
    return b'{"token":%b,"token_id":%d,"start":%d,"end":%d,"results":{%b}}' % (
        msgspec.json.encode(token),
        token_id,
        start,
        stop,
        results,
    )


class TokenEntry(msgspec.Struct):
    """One token, or one span."""

    token: str
    token_id: int
    start: int
    end: int
    results: dict[str, float]


ROUTES = (
    Route(
        path="/predict_tokens",
        decode=decode,
        run=classify_tokens,
        encode=encode,
        error_shape=tei_error,
        summary="Label tokens, or spans of them, with Baseten's API",
        body=PredictTokensBody,
        example={"inputs": ["The ferry leaves at seven."]},
        answers=(list[list[TokenEntry]],),
        raw_answer=RAGGED,
    ),
)
