"""/classify as vLLM has it, and as Infinity has it where `raw_scores` is given; /v1/classify is always vLLM's.

The two answers cannot be one: `data` has an object for each text in the one, a list in the other.
"""

import time
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from server.dialects.reading.inputs import SCHEMA, read_inputs
from server.dialects.reading.json_body import parse, parse_body
from server.dialects.tei.predict import prompt_for
from server.dialects.writing.predictions import SCHEMA as PREDICTIONS
from server.dialects.writing.predictions import classes, predictions
from server.dialects.writing.rows import Encoding, as_bytes, as_list, headers
from server.http.headers import Wishes
from server.http.route import Answer, Call, Route
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.errors import InvalidRequest, openai_answer
from server.requests.models import ModelTable
from server.requests.pipeline import Embedded


class ClassifyBody(msgspec.Struct):
    """The body of POST /classify; fields that are not named here are ignored."""

    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None
    use_activation: bool | None = None  # vLLM's; None = true
    raw_scores: bool | UnsetType = UNSET  # Infinity's, which sends it always
    user: str | None = None


class _Chat(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"null")


_BODY = msgspec.json.Decoder(ClassifyBody)
_CHAT = msgspec.json.Decoder(_Chat)


async def answer(call: Call, *, always_vllm: bool) -> Answer:
    """POST /classify and /v1/classify."""
    body = await call.body()
    with call.held(body):
        request, is_infinity = decode(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body  # what is in it was copied out
        encoding = Encoding.BYTES if call.wishes.raw_bytes else Encoding.FLOAT
        call.trace.encoding = encoding.value
        scored = await classify(call.resources.pipeline, request, call.trace)
    labels = labels_of(request.model, scored.rows.shape[1])
    if encoding is Encoding.BYTES:
        out: bytes | memoryview = as_bytes(scored.rows)
    elif is_infinity and not always_vllm:
        items = await predictions(scored.rows, labels)
        out = _wrapped(items, b"classify", request, scored, call.trace.request_id)
    else:
        items = await classes(scored.rows, labels)
        out = _wrapped(items, b"list", request, scored, call.trace.request_id)
    return 200, headers(scored, encoding), out


def decode(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[ClassifyRequest, bool]:
    """What is asked for, and whether in Infinity's way. Raises RequestError, naming the field or index."""
    _refuse_chat(body)
    fields = parse_body(_BODY, body)
    model = models.choose(fields.model)
    given = read_inputs(fields.input, "input", max_items=max_items)
    is_infinity = fields.raw_scores is not UNSET
    if is_infinity and fields.use_activation is not None:
        raise InvalidRequest("use_activation and raw_scores say the same and can't both be given", param="raw_scores")
    request = ClassifyRequest(
        model=model,
        texts=given.texts,
        token_ids=given.token_ids,
        prompt=prompt_for(model),
        truncation=model.truncation,
        raw_scores=fields.raw_scores is True or fields.use_activation is False,
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        is_single=given.is_single,
    )
    return request, is_infinity


def _refuse_chat(body: bytes) -> None:
    if b'"messages"' in body and bytes(parse(_CHAT, body).messages) != b"null":
        raise InvalidRequest("messages is not taken here; send texts as input", param="messages")


def _wrapped(items: list[bytes], kind: bytes, request: ClassifyRequest, scored: Embedded, request_id: str) -> bytes:
    return b'{"id":%b,"object":"%b","created":%d,"model":%b,"data":%b,"usage":%b}' % (
        msgspec.json.encode(f"classify-{request_id}"),
        kind,
        time.time(),
        msgspec.json.encode(request.model.name),
        as_list(items),
        b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"truncated_inputs":%d}'
        % (scored.num_tokens, scored.num_tokens, scored.num_truncated),
    )


def _schema(*data: dict[str, Any]) -> dict[str, Any]:
    counts = ("prompt_tokens", "total_tokens", "completion_tokens", "truncated_inputs")
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "object": {"type": "string"},
            "created": {"type": "integer"},
            "model": {"type": "string"},
            "data": {"type": "array", "items": {"anyOf": list(data)} if len(data) > 1 else data[0]},
            "usage": {"type": "object", "properties": {name: {"type": "integer"} for name in counts}},
        },
    }


_CLASS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "index": {"type": "integer"},
        "label": {"type": "string"},
        "probs": {"type": "array", "items": {"type": "number"}},
        "num_classes": {"type": "integer"},
    },
}


def _route(path: str, *, always_vllm: bool) -> Route:
    return Route(
        path=path,
        handler=partial(answer, always_vllm=always_vllm),
        error_shape=openai_answer,
        summary="Classes of texts, as vLLM has them" + ("" if always_vllm else "; as Infinity with `raw_scores`"),
        body=ClassifyBody,
        responses={
            "application/json": _schema(_CLASS) if always_vllm else _schema(_CLASS, PREDICTIONS),
            "application/octet-stream": {"type": "string", "format": "binary"},
        },
    )


ROUTES = (_route("/classify", always_vllm=False), _route("/v1/classify", always_vllm=True))
