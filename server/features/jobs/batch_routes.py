"""OpenAI's routes of files and batches. An upload is OpenAI's form of one file and its purpose, passed on in pieces as
it comes and never held whole.
"""

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from server.dialects.answers import Answer, Streamed, json_answer, openai_error
from server.dialects.reading.json_body import parse_body
from server.dialects.route import OBJECT, Response, Route
from server.features.jobs.feature import JOBS
from server.features.rpc import Caller
from server.http.request import HttpRequest
from server.requests.errors import (
    InvalidRequest,
    MalformedBody,
    NoSuchRoute,
    NotFound,
    NotReady,
    PayloadTooLarge,
    RequestError,
    UnsupportedMedia,
)
from wire.frames import Buffer

PIECE_BYTES = 256 * 1024  # of a file whose client may not go on
_MAX_BODY_BYTES = 256 * 1024  # of a new batch: its metadata may be written with escapes
# In a query: no sign, no zeros before it, ASCII alone; `2.0` too, as in bodies.
_INTEGER = re.compile(r"[1-9][0-9]{0,8}(\.0{1,9})?")
_DEFAULT_LIMIT = 20
_MAX_LIMIT = 100
_MAX_FIELD_BYTES = 1024
_MAX_HEAD_BYTES = 8192  # of all headers of a part
_MAX_PARTS = 2  # the file and its purpose: each more would cost time and no byte that counts
_OTHER_FORM = "the form may have one file and one purpose, and nothing else"
_MAX_NAME = 255  # characters of a file's name
_MAX_BOUNDARY_BYTES = 256  # the most that the parser takes; RFC 2046 has 70
_PURPOSE = "batch"
_END_SECONDS = 900.0  # for all of it to be put where --jobs-files says
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # its warnings are of clients' forms, which are answered


class NewBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


_NEW_BATCH = msgspec.json.Decoder(NewBatch)


async def asked(what: str, jobs: Caller, call: HttpRequest) -> Answer:
    """What the jobs process says to a call about what the path names."""
    return json_answer((await jobs.call(what, call.owner, **call.path_values)).value)


async def content(jobs: Caller, call: HttpRequest) -> Streamed:
    """All bytes, a piece at a time."""
    owner = call.owner
    info = (await jobs.call("file_view", owner, **call.path_values)).value
    few: dict[str, Any] = {"count": 1} if call.is_head else {}
    first = (await jobs.call("file_read", owner, file_id=info["id"], offset=0, **few)).body

    async def more(offset: int) -> Buffer:
        return (await jobs.call("file_read", owner, file_id=info["id"], offset=offset)).body

    headers = [(b"content-type", b"application/octet-stream")]
    return Streamed(200, headers, info["bytes"], pieces(first, info["bytes"], more))


async def create(jobs: Caller, call: HttpRequest) -> Answer:
    """Begin a batch. Raises RequestError, ClientLeft."""
    body = bytearray()
    async for chunk in call.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise PayloadTooLarge(f"the body of a batch may have {_MAX_BODY_BYTES} bytes")
    new = parse_body(_NEW_BATCH, bytes(body))
    fields = {**msgspec.to_builtins(new), "metadata": new.metadata or {}}
    return json_answer((await jobs.call("batch_create", call.owner, **fields)).value)


async def deleted(kind: str, jobs: Caller, call: HttpRequest) -> Answer:
    """The end of a file or a batch."""
    await jobs.call(f"{kind}_delete", call.owner, **call.path_values)
    return json_answer({"id": call.path_values[f"{kind}_id"], "object": kind, "deleted": True})


async def listed(kind: str, jobs: Caller, call: HttpRequest) -> Answer:
    """A page of files or batches."""
    query = call.query()
    _check_list(query)
    named = dict(query)
    fields: dict[str, Any] = {"after": named.get("after"), "limit": _limit(named.get("limit", str(_DEFAULT_LIMIT)))}
    return json_answer((await jobs.call(f"{kind}_list", call.owner, **fields)).value)


def _check_list(query: Iterable[tuple[str, str]]) -> None:
    """Raises InvalidRequest for what would choose or order what is listed in another way."""
    for name, value in query:
        if name not in ("limit", "after") and (name, value) != ("order", "desc"):
            raise InvalidRequest("a list takes limit, after and order=desc, the newest first", param=name)


def _limit(text: str) -> int:
    """A number of the query, from 1. Raises InvalidRequest."""
    if not _INTEGER.fullmatch(text) or float(text) > _MAX_LIMIT:
        raise InvalidRequest(f"limit must be 1 to {_MAX_LIMIT}", param="limit")
    return int(float(text))


async def pieces(first: Buffer, num_bytes: int, more: Callable[[int], Awaitable[Buffer]]) -> AsyncIterator[Buffer]:
    """The pieces of so many bytes, of which one is here at a time: their client may not read it. `more` gives the piece
    from there."""
    offset, piece = 0, first
    del first
    while piece:
        offset += len(piece)
        yield piece
        piece = b""  # it is not kept while the next one is read
        if offset < num_bytes:
            try:
                piece = await more(offset)
            except RequestError:
                return  # fewer bytes than announced: the client sees that it is not whole


@dataclass(slots=True)
class _Form:
    """The parts of a form that the parser has found so far; `chunks` is emptied as it is passed on."""

    name: str = ""  # of the part that is being read
    filename: str | None = None  # of the file, once its part has begun
    fields: dict[str, bytearray] = field(default_factory=dict)
    chunks: bytearray = field(default_factory=bytearray)
    header: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    num_head_bytes: int = 0
    num_parts: int = 0
    has_ended: bool = False

    def begin_part(self) -> None:
        self.name, self.num_head_bytes, self.num_parts = "", 0, self.num_parts + 1

    def end_head(self) -> None:
        if self.num_parts > _MAX_PARTS:
            raise InvalidRequest(_OTHER_FORM, param=self.name[:_MAX_NAME], own_param="")

    def header_piece(self, which: int, data: bytes, start: int, end: int) -> None:
        self.num_head_bytes += end - start
        if self.num_head_bytes > _MAX_HEAD_BYTES:
            raise MalformedBody("a part of the form has headers that are too long")
        self.header[which].extend(data[start:end])

    def end_header(self) -> None:
        name, value = (bytes(piece) for piece in self.header)
        for piece in self.header:
            piece.clear()
        if name.lower() != b"content-disposition":
            return
        options = parse_options_header(value)[1]
        self.name = options.get(b"name", b"").decode(errors="replace")
        if self.name == "file":
            if self.filename is not None:
                raise InvalidRequest("the form has more than one file", param="file")
            self.filename = options.get(b"filename", b"file").decode(errors="replace")[:_MAX_NAME]
        elif self.name == "purpose" and self.name not in self.fields:
            self.fields[self.name] = bytearray()
        else:
            raise InvalidRequest(_OTHER_FORM, param=self.name[:_MAX_NAME], own_param="")

    def data(self, data: bytes, start: int, end: int) -> None:
        if self.name == "file":
            self.chunks.extend(data[start:end])
            return
        if not self.name or len(self.fields[self.name]) + end - start > _MAX_FIELD_BYTES:
            raise MalformedBody("a part of the form has no name, or is too long")
        self.fields[self.name].extend(data[start:end])

    def end(self) -> None:
        self.has_ended = True


async def upload(jobs: Caller, call: HttpRequest) -> Answer:
    """Keep a file. Raises RequestError, ClientLeft."""
    form, owner = _Form(), call.owner
    parser = _parser(call, form)
    length = call.headers.get(b"content-length")
    if length is None:
        raise InvalidRequest("an upload must say its length", param="content-length")
    file_id = None
    try:
        async for chunk in call.stream():
            parser.write(chunk)
            if form.filename is not None and file_id is None:
                begun = await jobs.call("file_begin", owner, filename=form.filename, most=int(length))
                file_id = str(begun.value["file_id"])
            while len(form.chunks) >= PIECE_BYTES or (form.has_ended and form.chunks):
                piece = bytes(form.chunks[:PIECE_BYTES])
                del form.chunks[:PIECE_BYTES]
                await jobs.call("file_append", owner, body=piece, file_id=file_id)
        if not form.has_ended or file_id is None:
            raise MalformedBody("the form has no file, or no end")
        if bytes(form.fields.get("purpose", b"")) != _PURPOSE.encode():
            raise InvalidRequest(f"purpose must be {_PURPOSE}", param="purpose")
        ended = (await jobs.call("file_end", owner, timeout_s=_END_SECONDS, file_id=file_id)).value
        file_id = None
        return json_answer(ended)
    except MultipartParseError:
        raise MalformedBody("the form can't be read") from None
    finally:
        if file_id is not None:
            with contextlib.suppress(RequestError):  # the process has ended, and forgets it by itself
                await jobs.call("file_abandon", owner, file_id=file_id)


def _parser(call: HttpRequest, form: _Form) -> MultipartParser:
    kind, options = parse_options_header(call.headers.get(b"content-type", b""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary or len(boundary) > _MAX_BOUNDARY_BYTES:
        raise UnsupportedMedia("an upload must be multipart/form-data with a boundary")
    return MultipartParser(
        boundary,
        {
            "on_part_begin": form.begin_part,
            "on_header_field": lambda data, start, end: form.header_piece(0, data, start, end),
            "on_header_value": lambda data, start, end: form.header_piece(1, data, start, end),
            "on_header_end": form.end_header,
            "on_headers_finished": form.end_head,
            "on_part_data": form.data,
            "on_end": form.end,
        },
    )


JobAnswer = Callable[[Caller, HttpRequest], Awaitable[Answer | Streamed]]
_THERE = {200: Response("It is there", OBJECT)}
_BYTES = {200: Response("The bytes", {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}})}
_FORM = {
    "type": "object",
    "properties": {"purpose": {"enum": ["batch"]}, "file": {"type": "string", "format": "binary"}},
    "required": ["purpose", "file"],
}
_FILE = {"multipart/form-data": {"schema": _FORM, "example": {"purpose": "batch", "file": "{}"}}}
_EXAMPLE = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}
_ERRORS = (NoSuchRoute, NotFound, InvalidRequest, MalformedBody, UnsupportedMedia, PayloadTooLarge)


def job_route(method: str, path: str, answer: JobAnswer, **documented: Any) -> Route:
    """A route of jobs; `answer` gets the client of their process too."""
    errors: tuple[type[RequestError], ...] = (NotReady, *documented.pop("errors", _ERRORS))
    given: dict[str, Any] = {"responses": _THERE, **documented, "errors": errors, "answer": answer}
    return Route(method=method, path=path, error_shape=openai_error, summary=JOBS.routes[method, path], **given)


BATCH_ROUTES = (
    job_route("POST", "/v1/files", upload, body_schema={"required": True, "content": _FILE}),
    job_route("GET", "/v1/files", partial(listed, "file")),
    job_route("GET", "/v1/files/{file_id}", partial(asked, "file_view")),
    job_route("DELETE", "/v1/files/{file_id}", partial(deleted, "file")),
    job_route("GET", "/v1/files/{file_id}/content", content, responses=_BYTES, description=content.__doc__),
    job_route("POST", "/v1/batches", create, body=NewBatch, example=_EXAMPLE),
    job_route("GET", "/v1/batches", partial(listed, "batch")),
    job_route("GET", "/v1/batches/{batch_id}", partial(asked, "batch_view")),
    job_route("DELETE", "/v1/batches/{batch_id}", partial(deleted, "batch")),
    job_route("POST", "/v1/batches/{batch_id}/cancel", partial(asked, "batch_cancel")),
)
