"""OpenAI's dialect of embeddings: a decoder and an encoder, nothing more.

https://platform.openai.com/docs/api-reference/embeddings; `encoding_format: "bytes"` is ours.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from server.dialects.reading.inputs import SCHEMA, read_dimensions, read_inputs, read_prompt
from server.dialects.reading.json_body import parse_body
from server.dialects.writing.rows import Encoding, as_bytes, headers, in_slices
from server.http.headers import Wishes
from server.http.route import Answer, Call, Route
from server.requests.errors import InvalidRequest, openai_answer
from server.requests.models import ModelTable
from server.requests.pipeline import Embedded, EmbedRequest

EMBEDDINGS_PATHS = ("/v1/embeddings", "/embeddings")


class EmbeddingsBody(msgspec.Struct):
    """The body of POST /v1/embeddings as it may come; fields that are not named here are ignored."""

    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None
    prompt_name: str | None = None  # ours, as TEI has it


_BODY = msgspec.json.Decoder(EmbeddingsBody)


async def embeddings(call: Call) -> Answer:
    """POST /v1/embeddings."""
    body = await call.body()
    with call.held(body):
        request, encoding = decode(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body  # what is in it was copied out
        call.trace.encoding = encoding.value
        embedded = await call.resources.pipeline.embed(request, call.trace)
    return 200, headers(embedded, encoding), await encode(embedded, encoding, request.model.name)


def decode(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Encoding]:
    """Raises InvalidRequest and ModelNotFound, naming the field or index."""
    fields = parse_body(_BODY, body)
    model = models.choose(fields.model)
    given = read_inputs(fields.input, "input", max_items=max_items)
    encoding = _read_encoding(fields.encoding_format)
    request = EmbedRequest(
        model=model,
        texts=given.texts,
        token_ids=given.token_ids,
        prompt=read_prompt(fields.prompt_name, given, model),
        truncation=model.truncation,
        dimensions=read_dimensions(fields.dimensions, model.dimensions),
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        is_single=given.is_single,
    )
    return request, Encoding.BYTES if wishes.raw_bytes else encoding


def _read_encoding(wished: str | None) -> Encoding:
    if wished is None:
        return Encoding.FLOAT
    try:
        return Encoding(wished)
    except ValueError:
        raise InvalidRequest("encoding_format must be float, base64 or bytes", param="encoding_format") from None


async def encode(embedded: Embedded, encoding: Encoding, model: str) -> bytes | memoryview:
    """The body of the answer. Long work is done in slices, so that other requests get their turn."""
    if encoding is Encoding.BYTES:
        return as_bytes(embedded.rows)
    parts = [b'{"object":"list","data":[']
    async for first, rows in in_slices(embedded.rows):
        parts += _items(rows, encoding, first)
    parts.append(
        b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d,"truncated_inputs":%d}}'
        % (orjson.dumps(model), embedded.num_tokens, embedded.num_tokens, embedded.num_truncated)
    )
    return b"".join(parts)


def _items(rows: NDArray[np.float32], encoding: Encoding, first: int) -> Iterator[bytes]:
    for index, row in enumerate(rows, first):
        comma = b"," if index else b""
        if encoding is Encoding.BASE64:
            yield b'%b{"object":"embedding","index":%d,"embedding":"%b"}' % (comma, index, pybase64.b64encode(row.data))
        else:
            numbers = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
            yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (comma, index, numbers)


def _answer_schema() -> dict[str, Any]:
    numbers = {"oneOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "format": "byte"}]}
    item = {"object": {"const": "embedding"}, "index": {"type": "integer"}, "embedding": numbers}
    counts = ("prompt_tokens", "total_tokens", "truncated_inputs")
    return {
        "type": "object",
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"type": "object", "properties": item}},
            "model": {"type": "string"},
            "usage": {"type": "object", "properties": {name: {"type": "integer"} for name in counts}},
        },
    }


ROUTES = tuple(
    Route(
        path=path,
        handler=embeddings,
        error_shape=openai_answer,
        summary="Embeddings, as OpenAI has them",
        body=EmbeddingsBody,
        responses={
            "application/json": _answer_schema(),
            "application/octet-stream": {"type": "string", "format": "binary"},
        },
    )
    for path in ("/v1/embeddings", "/embeddings")
)
