"""OpenAI's embeddings API.

https://platform.openai.com/docs/api-reference/embeddings; `encoding_format: "bytes"` is ours.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from server.dialects.reading.inputs import SCHEMA, read_dimensions, read_inputs, read_prompt
from server.dialects.reading.known_fields import BodyReader
from server.dialects.route import Answer, Call, Encoding, Route
from server.dialects.writing.openai_shapes import Usage, openai_error
from server.dialects.writing.rows import ROWS, as_bytes, headers
from server.requests.errors import InvalidRequest
from server.requests.pipeline import Pipeline
from server.requests.time_slices import steps
from server.requests.work import Embedded, EmbedRequest

EMBEDDINGS_PATHS = ("/v1/embeddings", "/embeddings")


class EmbeddingsBody(msgspec.Struct):
    """The body of POST /v1/embeddings."""

    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None
    prompt_name: str | None = None  # ours, as TEI has it


_NUMBERS_AN_ITEM = 64  # what writing an item costs beside its row, counted in plain numbers
_BODY = BodyReader(EmbeddingsBody)


def decode(call: Call, body: bytes) -> EmbedRequest:
    """Raises InvalidRequest and ModelNotFound, naming the field or index."""
    fields = _BODY.read(body)
    model = call.models.choose(fields.model)
    given = read_inputs(fields.input, "input", max_items=call.max_items)
    call.set_encoding(_read_encoding(fields.encoding_format))
    return EmbedRequest(
        model=model,
        texts=given.texts,
        token_ids=given.token_ids,
        prompt=read_prompt(fields.prompt_name, given, model),
        truncation=model.truncation,
        dimensions=read_dimensions(fields.dimensions, model.dimensions),
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        is_single=given.is_single,
    )


def _read_encoding(wanted: str | None) -> Encoding:
    if wanted is None:
        return Encoding.FLOAT
    try:
        return Encoding(wanted)
    except ValueError:
        raise InvalidRequest("encoding_format must be float, base64 or bytes", param="encoding_format") from None


async def encode(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    encoding = call.encoding or Encoding.FLOAT
    if encoding is Encoding.BYTES:
        return Answer(200, headers(embedded, encoding), as_bytes(embedded.rows))
    parts = [b'{"object":"list","data":[']
    num_rows, width = embedded.rows.shape
    async for part in steps(num_rows, max(width, _NUMBERS_AN_ITEM)):
        parts += _items(np.ascontiguousarray(embedded.rows[part], "<f4"), encoding, part.start)
    parts.append(
        b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d,"truncated_inputs":%d}}'
        % (orjson.dumps(request.model.name), embedded.num_tokens, embedded.num_tokens, embedded.num_truncated)
    )
    return Answer(200, headers(embedded, encoding), b"".join(parts))


def _items(rows: NDArray[np.float32], encoding: Encoding, first: int) -> Iterator[bytes]:
    for index, row in enumerate(rows, first):
        comma = b"," if index else b""
        if encoding is Encoding.BASE64:
            yield b'%b{"object":"embedding","index":%d,"embedding":"%b"}' % (comma, index, pybase64.b64encode(row.data))
        else:
            numbers = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
            yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (comma, index, numbers)


class _Embedding(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | Annotated[str, msgspec.Meta(extra_json_schema={"format": "byte"})]


class EmbeddingsAnswer(msgspec.Struct):
    """The answer of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[_Embedding]
    model: str
    usage: Usage


ROUTES = tuple(
    Route(
        path=path,
        decode=decode,
        run=Pipeline.embed,
        encode=encode,
        error_shape=openai_error,
        summary="Embed texts with OpenAI's API",
        body=EmbeddingsBody,
        example={"input": "The ferry leaves at seven."},
        answers=(EmbeddingsAnswer,),
        raw_answer=ROWS,
    )
    for path in EMBEDDINGS_PATHS
)
