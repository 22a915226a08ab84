"""text-embeddings-inference's /predict: labels and scores of texts or of pairs.

https://github.com/huggingface/text-embeddings-inference, router/src/http/types.rs (PredictRequest).
"""

from typing import Annotated, Any

import msgspec

from server.dialects.reading.json_body import parse_body
from server.dialects.reading.text_lists import read_texts_or_pairs
from server.dialects.tei.answers import timing_headers
from server.dialects.tei.bodies import Truncating, read_truncation
from server.dialects.writing.predictions import SCHEMA, predictions
from server.dialects.writing.rows import Encoding, as_bytes, as_list, headers
from server.http.headers import Wishes
from server.http.route import Answer, Call, Route
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.errors import tei_answer
from server.requests.models import ModelTable, ServedModel
from server.requests.pipeline import Embedded

_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}
_INPUTS = {"anyOf": [{"type": "string"}, _TEXTS, {"type": "array", "items": _TEXTS}]}


class PredictBody(Truncating, kw_only=True):
    """The body of POST /predict; fields that are not named here are ignored."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_INPUTS)]
    raw_scores: bool | None = None  # None = false
    model: str | None = None  # ours


_BODY = msgspec.json.Decoder(PredictBody)


async def predict(call: Call) -> Answer:
    """POST /predict."""
    body = await call.body()
    with call.held(body):
        request = decode(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body  # what is in it was copied out
        encoding = Encoding.BYTES if call.wishes.raw_bytes else Encoding.FLOAT
        call.trace.encoding = encoding.value
        scored = await classify(call.resources.pipeline, request, call.trace)
    answer = await encode(scored, encoding, request)
    return 200, [*headers(scored, encoding), *timing_headers(call.trace)], answer


def decode(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> ClassifyRequest:
    """Raises RequestError, naming the field or index."""
    fields = parse_body(_BODY, body)
    model = models.choose(fields.model)
    given = read_texts_or_pairs(fields.inputs, "inputs", max_items=max_items)
    return ClassifyRequest(
        model=model,
        texts=given.texts,
        pair_texts=given.pair_texts,
        prompt=prompt_for(model),
        truncation=read_truncation(fields, model),
        raw_scores=bool(fields.raw_scores),
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        field="inputs",
        is_single=given.is_single,
    )


def prompt_for(model: ServedModel) -> str:
    """What goes before each text, or as the instruction into the template of a model that has one."""
    return model.default_prompt if model.instruction is None else model.instruction


async def encode(scored: Embedded, encoding: Encoding, request: ClassifyRequest) -> bytes | memoryview:
    """The body of the answer. Long work is done in slices, so that other requests get their turn."""
    if encoding is Encoding.BYTES:
        return as_bytes(scored.rows)
    items = await predictions(scored.rows, labels_of(request.model, scored.rows.shape[1]))
    return items[0] if request.is_single else as_list(items)


_ANSWER: dict[str, Any] = {"anyOf": [SCHEMA, {"type": "array", "items": SCHEMA}]}

ROUTES = (
    Route(
        path="/predict",
        handler=predict,
        error_shape=tei_answer,
        summary="Labels and scores of texts or pairs, as TEI has them",
        body=PredictBody,
        responses={
            "application/json": _ANSWER,
            "application/octet-stream": {"type": "string", "format": "binary"},
        },
    ),
)
