"""OpenAI's embeddings API.

https://platform.openai.com/docs/api-reference/embeddings; types of numbers and raw bytes as vLLM and Voyage have them.
"""

from typing import Annotated, Literal

import msgspec
import orjson

from server.dialects.reading.forms import read_form
from server.dialects.reading.inputs import SCHEMA, read_dimensions, read_inputs, read_prompt
from server.dialects.reading.known_fields import BodyReader
from server.dialects.route import Answer, Call, Route
from server.dialects.writing.forms import FLOATS, row_values
from server.dialects.writing.openai_shapes import Usage, openai_error
from server.dialects.writing.rows import ROWS, headers, rows_alone
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
    embed_dtype: str | None = None  # vLLM's
    output_dtype: str | None = None  # Voyage's
    embedding_type: str | None = None  # Jina's
    endianness: str | None = None  # vLLM's


_NUMBERS_AN_ITEM = 64  # what writing an item costs beside its row, counted in plain numbers
_BODY = BodyReader(EmbeddingsBody)


def decode(call: Call, body: bytes) -> EmbedRequest:
    """Raises InvalidRequest and ModelNotFound, naming the field or index."""
    fields = _BODY.read(body)
    model = call.models.choose(fields.model)
    given = read_inputs(fields.input, "input", max_items=call.max_items)
    call.set_form(
        read_form(
            fields.encoding_format,
            embedding_type=fields.embedding_type,
            endianness=fields.endianness,
            embed_dtype=fields.embed_dtype,
            output_dtype=fields.output_dtype,
        )
    )
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


async def encode(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    form, ranges = call.form or FLOATS, request.model.ranges
    if form.has_rows_alone:
        return await rows_alone(embedded, form, ranges)
    out = bytearray(b'{"object":"list","data":[')  # one buffer, because the answer can be a hundred megabytes
    num_rows, width = embedded.rows.shape
    async for part in steps(num_rows, max(width, _NUMBERS_AN_ITEM)):
        for index, value in enumerate(row_values(embedded.rows[part], form, ranges), part.start):
            out += b'%b{"object":"embedding","index":%d,"embedding":' % (b"," if index else b"", index)
            out += value
            out += b"}"
    out += b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d,"truncated_inputs":%d}}' % (
        orjson.dumps(request.model.name),
        embedded.num_tokens,
        embedded.num_tokens,
        embedded.num_truncated,
    )
    return Answer(200, headers(embedded, form, ranges), out)


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
