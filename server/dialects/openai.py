"""OpenAI's embeddings API, with types of numbers and raw bytes as vLLM and Voyage have them.

https://platform.openai.com/docs/api-reference/embeddings. A body may also be texts one in each line (NDJSON). A line is
a text, or an object: the route's body with one input, and an `id` if it likes. Its answer is a line too. Lines that ask
for the same are embedded together.
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import orjson

from server.dialects.error_shapes import error_fields, openai_error
from server.dialects.reading.inputs import SCHEMA, read_inputs
from server.dialects.reading.json_body import parse
from server.dialects.reading.row_options import read_form, read_normalize, read_on_error, read_output_dimension
from server.dialects.reading.text_options import (
    PROMPT_FIELDS,
    PromptFields,
    read_adapter,
    read_chunking,
    read_cut,
    read_prompt,
)
from server.dialects.route import Answer, Call, PlainRoute, Route
from server.dialects.row_answers import ROWS, Usage, headers, rows_alone
from server.dialects.row_forms import (
    EVERY_CONTAINER,
    FLOATS,
    SCALED,
    WITH_ROWS_ONLY,
    Container,
    Ranges,
    RowForm,
    as_msgpack,
    is_by_row,
    list_head,
    msgpack_values,
    row_values,
)
from server.dialects.vllm.chat import TextOrChatReader, work_of
from server.dialects.vllm.shared import metadata_header
from server.requests.embeddings import embed_any
from server.requests.errors import InvalidRequest, RequestError, UnsupportedTask
from server.requests.models import ServedModel, ServerState
from server.requests.time_slices import steps
from server.requests.work import Chunking, Embedded, EmbedRequest
from wire.json_values import value_at

EMBEDDINGS_PATHS = ("/v1/embeddings", "/embeddings")


class EmbeddingsBody(PromptFields, kw_only=True):
    """The body of POST /v1/embeddings."""

    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None
    encoding_format: str | tuple[str, ...] | None = None  # Mixedbread's may be a list
    dimensions: int | None = None
    user: str | None = None
    output_dimension: int | None = None  # Voyage's
    normalize: bool | None = None  # TEI's; None = as the model does
    normalized: bool | None = None  # Jina's
    use_activation: bool | None = None  # vLLM's
    add_special_tokens: bool = True  # vLLM's
    embed_dtype: str | None = None  # vLLM's
    output_dtype: str | None = None  # Voyage's
    embedding_type: str | None = None  # Jina's
    endianness: str | None = None  # vLLM's
    late_chunking: bool | None = None  # Jina's
    long_text: str | None = None  # ours
    on_error: str | None = None  # ours


_NUMBERS_AN_ITEM = 64  # what writing an item costs beside its row, counted in plain numbers
_BODY = TextOrChatReader(EmbeddingsBody, field="input", without=PROMPT_FIELDS)
_MSGPACK_HEAD = b"\x86" + as_msgpack("object") + as_msgpack("list") + as_msgpack("data")  # 0x86: six fields follow
_MSGPACK_ITEM = b"\x83" + as_msgpack("object") + as_msgpack("embedding") + as_msgpack("index")
_MSGPACK_ROW = as_msgpack("embedding")
_Base64 = Annotated[str, msgspec.Meta(extra_json_schema={"format": "byte"})]
_MAX_LINE_VALUES = 1000  # of a wrong line, among which its id is looked for
_LINE_TEXT = msgspec.json.Decoder(str)
_LINE_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode(call: Call, body: bytes) -> EmbedRequest:
    """Raises InvalidRequest and ModelNotFound, naming the field or index."""
    fields, chat = _BODY.read(body)
    model = call.models.choose(fields.model, with_prompt=True)
    call.set_form(
        read_form(
            fields.encoding_format,
            embedding_type=fields.embedding_type,
            endianness=fields.endianness,
            embed_dtype=fields.embed_dtype,
            output_dtype=fields.output_dtype,
        ),
        offers=EVERY_CONTAINER if fields.on_error is None else WITH_ROWS_ONLY,
    )
    allows_errors = read_on_error(fields.on_error, call)
    if chat is None:
        own = _texts(call, fields, model, may_be_empty=allows_errors)
    else:
        own = work_of(chat, max_items=call.max_items)
    return EmbedRequest(
        **call.common(model),
        **read_cut(fields, model),
        dimensions=read_output_dimension(fields.dimensions, fields.output_dimension, model.dimensions),
        normalize=read_normalize(fields.normalize, fields.normalized, fields.use_activation),
        allows_errors=allows_errors,
        chunking=read_chunking(
            fields.long_text,
            fields.late_chunking,
            model=model,
            are_texts=chat is None and own["token_ids"] is None,
            allows_errors=allows_errors,
        ),
        **own,
    )


def _texts(call: Call, fields: EmbeddingsBody, model: ServedModel, *, may_be_empty: bool) -> dict[str, Any]:
    """The fields of a Work that say of what it is. Raises what read_inputs and read_prompt raise."""
    given = read_inputs(fields.input, "input", max_items=call.max_items, may_be_empty=may_be_empty)
    return {
        "texts": given.texts,
        "token_ids": given.token_ids,
        "prompt": read_prompt(fields, given, model, name=call.models.asked_name(fields.model)),
        "adapter": read_adapter(fields, model, name=call.models.asked_name(fields.model)),
        "add_special_tokens": fields.add_special_tokens,
        "is_single": given.is_single,
    }


async def encode(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    form, ranges, name = call.form or FLOATS, request.ranges, request.model.name
    if form.has_rows_alone:
        answer = await rows_alone(embedded, form, ranges)
        more = metadata_header(answer, embedded, form, model=name, request_id=call.trace.request_id)
        return Answer(200, [*answer.headers, *more], answer.body)
    write = _in_msgpack if form.container is Container.MSGPACK else _in_json
    content = await write(request, embedded, form, request_id=f"embd-{call.trace.request_id}")
    return Answer(200, headers(embedded, form, ranges), content)


# Both write into one buffer, because the answer can be a hundred megabytes.


async def _in_json(request: EmbedRequest, embedded: Embedded, form: RowForm, *, request_id: str) -> bytearray:
    out, kind = bytearray(b'{"object":"list","data":['), b"embedding_dict" if form.several else b"embedding"
    failed = embedded.failed or {}
    async for part in _steps(embedded):
        for index, value in enumerate(row_values(embedded.rows[part], form, request.ranges), part.start):
            out += b'%b{"object":"%b","index":%d,"embedding":' % (b"," if index else b"", kind, index)
            out += b'null,"error":' + msgspec.json.encode(error_fields(failed[index])) if index in failed else value
            out += b"}"
    out += b'],"model":%b,"id":"%b","created":%d,' % (
        orjson.dumps(request.model.name),
        request_id.encode(),
        time.time(),
    )
    out += b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"truncated_inputs":%d}}' % (
        embedded.num_tokens,
        embedded.num_tokens,
        embedded.num_truncated,
    )
    return out


async def _in_msgpack(request: EmbedRequest, embedded: Embedded, form: RowForm, *, request_id: str) -> bytearray:
    out = bytearray(_MSGPACK_HEAD + list_head(len(embedded.rows)))
    async for part in _steps(embedded):
        for index, value in enumerate(msgpack_values(embedded.rows[part], form, request.ranges), part.start):
            out += _MSGPACK_ITEM
            out += as_msgpack(index)
            out += _MSGPACK_ROW
            out += value
    usage = Usage(embedded.num_tokens, embedded.num_tokens, embedded.num_truncated)
    rest = {"model": request.model.name, "id": request_id, "created": int(time.time()), "usage": usage}
    for name, content in rest.items():
        out += as_msgpack(name) + as_msgpack(content)
    return out


def _steps(embedded: Embedded) -> AsyncIterator[slice]:
    num_rows, width = embedded.rows.shape
    return steps(num_rows, max(width, _NUMBERS_AN_ITEM))


class _Embedding(msgspec.Struct):
    object: Literal["embedding", "embedding_dict"]  # a dict if encoding_format is a list
    index: int
    embedding: list[float] | _Base64 | dict[str, list[float] | _Base64] | None
    error: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET  # only with `on_error: "null"`


class EmbeddingsAnswer(msgspec.Struct):
    """The answer of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[_Embedding]
    model: str
    id: str  # vLLM's, as the next one
    created: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it was read."""

    index: int  # from 0; empty lines do not count
    input: bytes = b""  # in JSON: a text, or a list, which should be one of token ids
    options: bytes = b""  # the other fields as they came: a JSON object without its braces
    id: bytes = b""  # in JSON; b"" = it has none
    error: RequestError | None = None  # why it can't be read; then there is nothing else but the id


def read_line(data: bytes, index: int) -> Line:
    """Reads one line; what is wrong with it is its `error`."""
    own_id = b""
    try:
        if data.startswith(b'"'):
            parse(_LINE_TEXT, data, "line")
            return Line(index, data)
        if not data.startswith(b"{"):
            raise InvalidRequest("a line must be a text or an object with `input`", param="line")
        fields = parse(_LINE_FIELDS, data, "line")
        own_id = _line_id(fields.pop("id", None))
        return _read_object(fields, index, own_id)
    except RequestError as error:
        if not own_id and data.startswith(b"{"):
            own_id = _id_of_wrong_line(data)
        error.__context__ = None
        return Line(index, id=own_id, error=error.with_traceback(None))  # these would keep the frames, and all in them


def _line_id(value: msgspec.Raw | None) -> bytes:
    """The id as it was written, so no digit of a number is lost. Raises InvalidRequest."""
    own_id = b"" if value is None else bytes(value)
    if own_id in (b"", b"null"):
        return b""
    if own_id.startswith(b'"'):
        parse(_LINE_TEXT, own_id, "id")
    elif own_id[0] not in b"-0123456789":
        raise InvalidRequest("id must be a text or a number", param="id")
    return own_id


def _id_of_wrong_line(data: bytes) -> bytes:
    """The id of a line that can't be read as a whole, if it stands near the line's beginning."""
    given = value_at(data, ("id",), most=_MAX_LINE_VALUES)
    try:
        return b"" if given is None else _line_id(msgspec.Raw(given))
    except RequestError:
        return b""


def _read_object(fields: dict[str, msgspec.Raw], index: int, own_id: bytes) -> Line:
    """The line of an object without its id."""
    given = bytes(fields.pop("input", b""))
    if not given.startswith((b'"', b"[")):
        raise InvalidRequest("input must be a text or a list of token ids", param="input")
    if "on_error" in fields:
        raise InvalidRequest("on_error can't be given in a line: each fails alone", param="on_error")
    options = b",".join(b"%b:%b" % (msgspec.json.encode(name), value) for name, value in fields.items())
    return Line(index, given, options, own_id)


def body_of(lines: Sequence[Line]) -> bytes:
    """The route's own body for one line, or for several with the same options."""
    if len(lines) == 1:
        fields = [b'"input":' + lines[0].input]
    else:
        fields = [b'"input":[%b]' % b",".join(line.input for line in lines), b'"on_error":"null"']
    return b"{%b}" % b",".join([*fields, lines[0].options] if lines[0].options else fields)


def check_lines(lines: Sequence[Line], work: EmbedRequest, form: RowForm | None) -> None:
    """Raises InvalidRequest for what a line can't ask for."""
    if work.is_single != (len(lines) == 1) or work.num_items != len(lines):
        raise InvalidRequest("a line must have one text or one list of token ids", param="input")
    if form is not None and form.has_rows_alone:
        raise InvalidRequest("encoding_format can't be bytes in lines; base64 can", param="encoding_format")
    if work.chunking is Chunking.LATE:
        raise InvalidRequest(
            "late_chunking needs all chunks in one body, and a line has one text", param="late_chunking"
        )


def answer_line(line: Line, content: bytes) -> bytes:
    """One line of the answer; `content` are the members of its object after `index` and `id`."""
    own_id = b',"id":' + line.id if line.id else b""
    return b'{"index":%d%b,%b}\n' % (line.index, own_id, content)


def error_line(line: Line, error: RequestError) -> bytes:
    return answer_line(line, b'"error":' + msgspec.json.encode(error_fields(error)))


def last_line(error: RequestError) -> bytes:
    """The line that ends the answer early: no line's own error, so it has no index."""
    return b'{"error":%b}\n' % msgspec.json.encode(error_fields(error))


def row_lines(lines: Sequence[Line], ranges: Ranges | None, embedded: Embedded, form: RowForm | None) -> list[bytes]:
    """A line for each row, also for those that failed. Raises InvalidRequest."""
    form, more = form or FLOATS, b""
    if form.dtype in SCALED or any(one.dtype in SCALED for _, one in form.several):
        more = b',"scale":"row"' if is_by_row(embedded.rows.shape[1], ranges) else b',"scale":"ranges"'
    values: Any = zip(lines, row_values(embedded.rows, form, ranges), embedded.truncated.tolist(), strict=True)
    return [
        answer_line(line, b'"embedding":%b%b%b' % (value, more, b',"truncated":true' if is_cut else b""))
        for line, value, is_cut in values
    ]


ROUTES = tuple(
    Route(
        path=path,
        decode=decode,
        run=embed_any,
        encode=encode,
        error_shape=openai_error,
        summary="Embed texts with OpenAI's API",
        body=EmbeddingsBody,
        example={"input": "The ferry leaves at seven."},
        answers=(EmbeddingsAnswer,),
        raw_answer=ROWS,
        more_bodies=(_BODY.chat_body,),
        takes_lines=True,
    )
    for path in EMBEDDINGS_PATHS
)


def _refuse(what: str, state: ServerState) -> Answer:
    """Refuse, whatever the body says."""
    return openai_error(UnsupportedTask(f"{what} can't be embedded here; POST /embeddings embeds texts", param="input"))


# Infinity's routes for images and sound (https://github.com/michaelfeil/infinity), which has its others in this form.
PLAIN_ROUTES = tuple(
    PlainRoute(
        path=path,
        method="POST",
        answer=partial(_refuse, what),
        error_shape=openai_error,
        summary=f"Refused: {what} can't be embedded",
        is_listed=False,
    )
    for path, what in (("/embeddings_image", "images"), ("/embeddings_audio", "sound"))
)
