"""OpenAI's embeddings API, with types of numbers and raw bytes as vLLM and Voyage have them.

https://platform.openai.com/docs/api-reference/embeddings. A body may also be texts one in each line, see lines.py.
"""

import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
import orjson
from msgspec.structs import asdict

from server.dialects.answers import Answer, error_fields
from server.dialects.fields.field import item_field
from server.dialects.fields.request import ModelField, UserField
from server.dialects.fields.rows import (
    ENCODING_FORMAT,
    EveryRowFields,
    OnErrorField,
    read_allows_errors,
    read_every_dimensions,
    read_every_form,
    read_normalize,
)
from server.dialects.fields.texts import (
    LATE_CHUNKING_PARAMS,
    PROMPT_FIELDS,
    ChunkingFields,
    PromptFields,
    Prompts,
    SpecialTokensField,
    check_is_whole,
    read_adapter,
    read_chunk_size,
    read_chunking,
    read_cut,
    read_prompts,
)
from server.dialects.reading.inputs import SCHEMA, TextOrChatReader, read_items
from server.dialects.route import Call, Route, Stages
from server.dialects.row_answers import (
    EVERY_CONTAINER,
    ROWS,
    WITH_ROWS_ONLY,
    Container,
    Encoding,
    RowForm,
    Usage,
    as_json,
    as_msgpack,
    headers,
    list_head,
    metadata_header,
    msgpack_values,
    row_values,
    rows_alone,
)
from server.requests.embeddings import Chunk, Chunked, embed_any
from server.requests.errors import InvalidRequest, UnsupportedTask
from server.requests.limits import in_steps
from server.requests.work import Embedded, EmbedRequest

EMBEDDINGS_PATHS = ("/v1/embeddings", "/embeddings")


class EmbeddingsBody(
    PromptFields, ModelField, UserField, EveryRowFields, SpecialTokensField, ChunkingFields, OnErrorField, kw_only=True
):
    """The body of POST /v1/embeddings."""

    input: Annotated[msgspec.Raw, item_field("what is embedded", SCHEMA)]


_NUMBERS_AN_ITEM = 64  # what writing an item costs beside its row, counted in plain numbers
_BODY = TextOrChatReader(EmbeddingsBody, field="input", without=PROMPT_FIELDS, takes_chats_as_input=True)
_MSGPACK_HEAD = b"\x86" + as_msgpack("object") + as_msgpack("list") + as_msgpack("data")  # 0x86: six fields follow
_MSGPACK_ITEM = b"\x83" + as_msgpack("object") + as_msgpack("embedding") + as_msgpack("index")
_MSGPACK_ROW = as_msgpack("embedding")
_Base64 = Annotated[str, msgspec.Meta(extra_json_schema={"format": "byte"})]


def decode(call: Call, body: bytes) -> EmbedRequest:
    """The request of a body. Raises InvalidRequest and ModelNotFound, naming the field or index."""
    fields, chat = _BODY.read(body)
    model = call.choose(fields, with_prompt=True)
    form, offers = read_every_form(fields), EVERY_CONTAINER if fields.on_error is None else WITH_ROWS_ONLY
    if chunk_size := read_chunk_size(fields):
        offers = _of_chunks(fields, form)
    call.set_form(form, offers=offers)
    allows_errors = read_allows_errors(fields, call)
    given = read_items(fields, chat, max_items=call.max_items, may_be_empty=allows_errors)
    name = call.models.asked_name(fields.model)
    before: Prompts
    if chat is None:
        before = read_prompts(fields, model, name=name, are_ids=given.has_ids)
    else:
        before = {"adapter": read_adapter(PromptFields(), model, name=name)}
    return EmbedRequest(
        **call.common(model),
        **asdict(given),
        add_special_tokens=fields.add_special_tokens,
        **read_cut(fields, model),
        dimensions=read_every_dimensions(fields, model.dimensions),
        normalize=read_normalize(fields),
        allows_errors=allows_errors,
        chunking=read_chunking(
            fields,
            model=model,
            are_texts=chat is None and not given.has_ids,
            allows_errors=allows_errors,
            chunk_size=chunk_size,
        ),
        chunk_size=chunk_size,
        **before,
    )


def _of_chunks(fields: EmbeddingsBody, form: RowForm) -> frozenset[Container]:
    """Chunks are of whole texts, and have their ranges beside their rows, for which only lists of numbers in JSON leave
    room. Raises InvalidRequest."""
    check_is_whole(fields)
    if form.encoding is not Encoding.FLOAT or form.several:
        raise InvalidRequest(
            f"{ENCODING_FORMAT} must be float, or one type of numbers, with {LATE_CHUNKING_PARAMS}",
            param=ENCODING_FORMAT,
        )
    return frozenset((Container.JSON,))


async def encode(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    form, ranges, name = call.form, request.ranges, request.model.name
    if form.has_rows_alone:
        answer = await rows_alone(embedded, form, ranges)
        more = metadata_header(answer, embedded, form, model=name, request_id=call.trace.request_id)
        return Answer(200, [*answer.headers, *more], answer.body)
    request_id = f"embd-{call.trace.request_id}"
    if isinstance(embedded, Chunked):
        content = await _chunks_in_json(request, embedded, form, request_id=request_id)
    else:
        write = _in_msgpack if form.container is Container.MSGPACK else _in_json
        content = await write(request, embedded, form, request_id=request_id)
    return Answer(200, headers(embedded, form, ranges), content)


# All write into one buffer, because the answer can be a hundred megabytes.


async def _in_json(request: EmbedRequest, embedded: Embedded, form: RowForm, *, request_id: str) -> bytearray:
    out, kind = bytearray(b'{"object":"list","data":['), b"embedding_dict" if form.several else b"embedding"
    failed, ranges = embedded.failed or {}, request.ranges

    def write(part: slice) -> None:
        nonlocal out
        for index, value in enumerate(row_values(embedded.rows[part], form, ranges), part.start):
            out += b'%b{"object":"%b","index":%d,"embedding":' % (b"," if index else b"", kind, index)
            out += b'null,"error":' + msgspec.json.encode(error_fields(failed[index])) if index in failed else value
            out += b"}"

    await in_steps(*_size(embedded), write)
    out += _end_of_json(request, embedded, request_id)
    return out


async def _chunks_in_json(request: EmbedRequest, embedded: Chunked, form: RowForm, *, request_id: str) -> bytearray:
    assert embedded.offsets is not None, "rows of chunks are ragged"
    out, spans = bytearray(b'{"object":"list","data":['), pairwise(embedded.offsets.tolist())
    for index, (chunks, (start, stop)) in enumerate(zip(embedded.chunks, spans, strict=True)):
        out += b'%b{"object":"embedding","index":%d,"embedding":' % (b"," if index else b"", index)
        out += await as_json(embedded.rows[start:stop], form, request.ranges)
        num_tokens = chunks[-1].token_range[1]
        ranges = ChunkRanges(request.chunk_size, num_tokens, chunks, "fixed_tokens")
        out += b',"late_chunking":%b}' % msgspec.json.encode(ranges)
    out += _end_of_json(request, embedded, request_id)
    return out


def _end_of_json(request: EmbedRequest, embedded: Embedded, request_id: str) -> bytes:
    usage = msgspec.json.encode(_usage(embedded))
    name, own_id = orjson.dumps(request.model.name), request_id.encode()
    return b'],"model":%b,"id":"%b","created":%d,"usage":%b}' % (name, own_id, time.time(), usage)


async def _in_msgpack(request: EmbedRequest, embedded: Embedded, form: RowForm, *, request_id: str) -> bytearray:
    out = bytearray(_MSGPACK_HEAD + list_head(len(embedded.rows)))

    def write(part: slice) -> None:
        nonlocal out
        for index, value in enumerate(msgpack_values(embedded.rows[part], form, request.ranges), part.start):
            out += _MSGPACK_ITEM
            out += as_msgpack(index)
            out += _MSGPACK_ROW
            out += value

    await in_steps(*_size(embedded), write)
    created = int(time.time())
    rest = {"model": request.model.name, "id": request_id, "created": created, "usage": _usage(embedded)}
    for name, content in rest.items():
        out += as_msgpack(name) + as_msgpack(content)
    return out


def _usage(embedded: Embedded) -> Usage:
    return Usage(embedded.num_tokens, embedded.num_tokens, embedded.num_truncated)


def _size(embedded: Embedded) -> tuple[int, int]:
    """The rows, and how many numbers each counts as."""
    num_rows, width = embedded.rows.shape
    return num_rows, max(width, _NUMBERS_AN_ITEM)


class ChunkRanges(msgspec.Struct):
    """Which tokens and characters the rows of a text stand for, as vLLM writes it."""

    chunk_size: int
    input_tokens: int
    chunks: Sequence[Chunk]
    strategy: Literal["fixed_tokens"]


class _Embedding(msgspec.Struct):
    object: Literal["embedding", "embedding_dict"]  # a dict if encoding_format is a list
    index: int
    # one row for each chunk with `late_chunking_params`
    embedding: list[float | list[float]] | _Base64 | dict[str, list[float] | _Base64] | None
    late_chunking: ChunkRanges | msgspec.UnsetType = msgspec.UNSET
    error: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET  # only with `on_error: "null"`


class EmbeddingsAnswer(msgspec.Struct):
    """The answer of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[_Embedding]
    model: str
    id: str  # vLLM's, as the next one
    created: int
    usage: Usage


ROUTES = tuple(
    Route(
        path=path,
        stages=Stages(decode, embed_any, encode),
        read=bytes,
        summary="Embed texts with OpenAI's API",
        body=EmbeddingsBody,
        answers=(EmbeddingsAnswer,),
        raw_answer=ROWS,
        more_bodies=_BODY.chat_bodies,
        takes_lines=True,
    )
    for path in EMBEDDINGS_PATHS
)


async def _refuse(what: str, call: Call) -> Answer:
    """Refuse, whatever the body says."""
    raise UnsupportedTask(f"{what} can't be embedded here; POST /embeddings embeds texts", param="input")


# Infinity's routes for images and sound (https://github.com/michaelfeil/infinity), which has its others in this form.
PLAIN_ROUTES = tuple(
    Route(path=path, answer=partial(_refuse, what), summary=f"Refused: {what} can't be embedded", is_listed=False)
    for path, what in (("/embeddings_image", "images"), ("/embeddings_audio", "sound"))
)
