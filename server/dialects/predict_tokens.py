"""Baseten's /predict_tokens: labels of tokens, or of the spans that they make.

https://docs.baseten.co/engines/bei/ner. Without aggregation there is an object for each token, special ones included,
which stand at no place of the text: their start and end are 0. With it there are those of transformers' pipeline.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from server.dialects.reading.json_body import parse_body
from server.dialects.reading.text_lists import read_single_texts
from server.dialects.tei.answers import timing_headers
from server.dialects.tei.bodies import Truncating, read_truncation
from server.dialects.writing.predictions import in_json
from server.dialects.writing.ragged import SCHEMA as RAGGED
from server.dialects.writing.ragged import ragged_bytes, ragged_headers
from server.dialects.writing.rows import Encoding, as_list, headers
from server.dialects.writing.time_slices import Turns
from server.http.headers import Wishes
from server.http.route import Answer, Call, Route
from server.requests.classify import labels_of
from server.requests.classify_tokens import ClassifyTokensRequest, ScoredTokens, classify_tokens
from server.requests.errors import InvalidRequest, tei_answer
from server.requests.models import ModelTable
from server.requests.token_labels import Aggregation, Span, spans
from tokenizer_pool.details import Token

_ENTRIES_A_TURN = 200
_TEXTS = {"type": "array", "items": {"type": "string"}}
_INPUTS = {"anyOf": [{"type": "string"}, _TEXTS, {"type": "array", "items": {**_TEXTS, "minItems": 1, "maxItems": 1}}]}
_NO_TOKEN = 0  # the id of what is not one token, as there


class PredictTokensBody(Truncating, kw_only=True):
    """The body of POST /predict_tokens; fields that are not named here are ignored."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_INPUTS)]
    raw_scores: bool | None = None  # every label's raw score of each token; None = the best one's probability
    aggregation_strategy: str | None = None  # None = none
    model: str | None = None  # ours


_BODY = msgspec.json.Decoder(PredictTokensBody)


async def predict_tokens(call: Call) -> Answer:
    """POST /predict_tokens."""
    body = await call.body()
    with call.held(body):
        request, aggregation = decode(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body  # what is in it was copied out
        encoding = Encoding.BYTES if call.wishes.raw_bytes else Encoding.FLOAT
        call.trace.encoding = encoding.value
        labelled = await classify_tokens(call.resources.pipeline, request, call.trace)
        if encoding is Encoding.BYTES:
            own = ragged_headers(labelled.scored)
            return 200, [*own, *timing_headers(call.trace)], ragged_bytes(labelled.scored)
        answer = await encode(labelled, request, aggregation)  # held: spans are cut out of the texts
    return 200, [*headers(labelled.scored, encoding), *timing_headers(call.trace)], answer


def decode(
    body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int
) -> tuple[ClassifyTokensRequest, Aggregation]:
    """Raises RequestError, naming the field or index."""
    fields = parse_body(_BODY, body)
    model = models.choose(fields.model)
    given = read_single_texts(fields.inputs, "inputs", max_items=max_items)
    aggregation = _read_aggregation(fields, wishes)
    request = ClassifyTokensRequest(
        model=model,
        texts=given.texts,
        truncation=read_truncation(fields, model),
        raw_scores=bool(fields.raw_scores),
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        field="inputs",
        is_single=given.is_single,
    )
    return request, aggregation


def _read_aggregation(fields: PredictTokensBody, wishes: Wishes) -> Aggregation:
    try:
        aggregation = Aggregation(fields.aggregation_strategy or "none")
    except ValueError:
        known = ", ".join(Aggregation)
        raise InvalidRequest(f"aggregation_strategy must be one of {known}", param="aggregation_strategy") from None
    if aggregation is not Aggregation.NONE and (fields.raw_scores or wishes.raw_bytes):
        raise InvalidRequest(
            "aggregation_strategy must be none where raw scores or raw bytes are asked for",
            param="aggregation_strategy",
        )
    return aggregation


async def encode(labelled: ScoredTokens, request: ClassifyTokensRequest, aggregation: Aggregation) -> bytes:
    """The body of the answer. Long work is done in slices, so that other requests get their turn."""
    rows, offsets = labelled.scored.rows, labelled.scored.offsets
    assert offsets is not None
    labels = labels_of(request.model, rows.shape[1])
    items, turns = [], Turns(_ENTRIES_A_TURN)
    for text, tokens, (start, stop) in zip(
        request.texts or (), labelled.tokens, pairwise(offsets.tolist()), strict=True
    ):
        if aggregation is Aggregation.NONE:
            found = _of_tokens(tokens, rows[start:stop], labels, has_all=request.raw_scores)
        else:
            found = _of_spans(text, spans(tokens, rows[start:stop], labels, aggregation))
        entries = []
        for entry in found:
            entries.append(entry)
            await turns.wrote(1)
        items.append(as_list(entries))
    return as_list(items)


def _of_tokens(
    tokens: Sequence[Token], scores: NDArray[np.float32], labels: Sequence[str], *, has_all: bool
) -> Iterator[bytes]:
    """Each with every label, or with its best one."""
    names = [msgspec.json.encode(label) for label in labels]
    for token, row in zip(tokens, scores, strict=True):
        chosen = range(len(names)) if has_all else [int(row.argmax())]
        numbers = in_json(row[chosen])[1:-1].split(b",")
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


_ENTRY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "token": {"type": "string"},
        "token_id": {"type": "integer"},
        "start": {"type": "integer"},
        "end": {"type": "integer"},
        "results": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}

ROUTES = (
    Route(
        path="/predict_tokens",
        handler=predict_tokens,
        error_shape=tei_answer,
        summary="Labels of tokens or spans, as Baseten has them",
        body=PredictTokensBody,
        responses={
            "application/json": {"type": "array", "items": {"type": "array", "items": _ENTRY}},
            "application/octet-stream": RAGGED,
        },
    ),
)
