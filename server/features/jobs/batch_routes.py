"""OpenAI's routes of files and batches, on FastAPI. An upload is OpenAI's form of one file and its purpose, passed on
in pieces as it comes and never held whole.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from server.dialects.reading.json_body import parse_body
from server.features.rpc import Caller
from server.http.body import IS_HEAD, OWNER, ClientLeft
from server.requests.errors import InvalidRequest, MalformedBody, PayloadTooLarge, RequestError, UnsupportedMedia
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
_PURPOSE = "batch"
_END_SECONDS = 900.0  # for all of it to be put where --jobs-files says


class NewBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


Endpoint = Callable[[Request], Awaitable[Response]]
_NEW_BATCH = msgspec.json.Decoder(NewBatch)


class BatchRoutes:
    """Routes for files and batches. Each raises RequestError."""

    def __init__(self, jobs: Caller) -> None:
        self._jobs = jobs

    async def upload(self, request: Request) -> Response:
        return JSONResponse(await received(request, self._jobs, request.scope[OWNER]))

    async def content(self, request: Request) -> Response:
        """All bytes, a piece at a time."""
        owner = request.scope[OWNER]
        info = (await self._jobs.call("file_view", owner, **request.path_params)).value
        is_head = request.scope.get(IS_HEAD, False)
        asked: dict[str, Any] = {"count": 1} if is_head else {}
        first = (await self._jobs.call("file_read", owner, file_id=info["id"], offset=0, **asked)).body
        headers = {"content-type": "application/octet-stream"}
        if is_head:
            return Response(headers={**headers, "content-length": str(info["bytes"])})

        async def more(offset: int) -> Buffer:
            return (await self._jobs.call("file_read", owner, file_id=info["id"], offset=offset)).body

        return in_pieces(first, info["bytes"], more, headers=headers)

    async def create(self, request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                raise PayloadTooLarge(f"the body of a batch may have {_MAX_BODY_BYTES} bytes")
        new = parse_body(_NEW_BATCH, bytes(body))
        fields = {**msgspec.to_builtins(new), "metadata": new.metadata or {}}
        return JSONResponse(await self._call("batch_create", request, fields))

    def one(self, what: str) -> Endpoint:
        """An endpoint for a call about one file or batch."""

        async def endpoint(request: Request) -> Response:
            return JSONResponse(await self._call(what, request, request.path_params))

        return endpoint

    def deleting(self, kind: str) -> Endpoint:
        """The end of a file or a batch."""

        async def endpoint(request: Request) -> Response:
            await self._call(f"{kind}_delete", request, request.path_params)
            return JSONResponse({"id": request.path_params[f"{kind}_id"], "object": kind, "deleted": True})

        return endpoint

    def listing(self, kind: str) -> Endpoint:
        """A page of files or batches."""

        async def endpoint(request: Request) -> Response:
            _check_list(request)
            limit = _integer(request, "limit", _DEFAULT_LIMIT, most=_MAX_LIMIT)
            fields = {"after": request.query_params.get("after"), "limit": limit}
            return JSONResponse(await self._call(f"{kind}_list", request, fields))

        return endpoint

    async def _call(self, what: str, request: Request, fields: Mapping[str, Any]) -> Any:
        return (await self._jobs.call(what, request.scope[OWNER], **fields)).value


def _check_list(request: Request) -> None:
    """Raises InvalidRequest for what would choose or order what is listed in another way."""
    for name, value in request.query_params.multi_items():
        if name not in ("limit", "after") and (name, value) != ("order", "desc"):
            raise InvalidRequest("a list takes limit, after and order=desc, the newest first", param=name)


def _integer(request: Request, name: str, default: int, *, most: int) -> int:
    """A number of the query, from 1. Raises InvalidRequest."""
    text = request.query_params.get(name, str(default))
    if not _INTEGER.fullmatch(text) or float(text) > most:
        raise InvalidRequest(f"{name} must be 1 to {most}", param=name)
    return int(float(text))


def in_pieces(
    first: Buffer,
    num_bytes: int,
    more: Callable[[int], Awaitable[Buffer]],
    *,
    status: int = 200,
    headers: Mapping[str, str],
) -> Response:
    """An answer of which one piece is here at a time: its client may not read it. `more` gives the piece from there."""

    content = _pieces(first, num_bytes, more)
    return StreamingResponse(content, status_code=status, headers={**headers, "content-length": str(num_bytes)})


async def _pieces(piece: Buffer, num_bytes: int, more: Callable[[int], Awaitable[Buffer]]) -> AsyncIterator[memoryview]:
    offset = 0
    while piece:
        yield memoryview(piece)
        offset += len(piece)
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
            raise InvalidRequest(_OTHER_FORM, param=self.name[:_MAX_NAME])

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
            raise InvalidRequest(_OTHER_FORM, param=self.name[:_MAX_NAME])

    def data(self, data: bytes, start: int, end: int) -> None:
        if self.name == "file":
            self.chunks.extend(data[start:end])
            return
        if not self.name or len(self.fields[self.name]) + end - start > _MAX_FIELD_BYTES:
            raise MalformedBody("a part of the form has no name, or is too long")
        self.fields[self.name].extend(data[start:end])

    def end(self) -> None:
        self.has_ended = True


async def received(request: Request, jobs: Caller, owner: str) -> dict[str, Any]:
    """The fields of the file, once all of it is kept. Raises RequestError, ClientLeft."""
    form = _Form()
    parser = _parser(request, form)
    length = request.headers.get("content-length")
    if length is None:
        raise InvalidRequest("an upload must say its length", param="content-length")
    file_id = None
    try:
        async for chunk in _chunks(request):
            _write(parser, chunk)
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
        ended: dict[str, Any] = (await jobs.call("file_end", owner, timeout_s=_END_SECONDS, file_id=file_id)).value
        file_id = None
        return ended
    finally:
        if file_id is not None:
            await _abandon(jobs, owner, file_id)


async def _abandon(jobs: Caller, owner: str, file_id: str) -> None:
    try:
        await jobs.call("file_abandon", owner, file_id=file_id)
    except RequestError:
        return  # the process has ended, and forgets it by itself


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise ClientLeft from None


def _parser(request: Request, form: _Form) -> MultipartParser:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
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


def _write(parser: MultipartParser, chunk: bytes) -> None:
    try:
        parser.write(chunk)
    except MultipartParseError:
        raise MalformedBody("the form can't be read") from None
