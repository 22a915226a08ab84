"""An upload as it comes: OpenAI's form of one file and its purpose, passed on in pieces and never held whole."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from server.http.body import ClientLeft
from server.jobs.client import JobsClient
from server.jobs.messages import Fields, Refused
from server.requests.errors import InvalidRequest, MalformedBody, UnsupportedMedia

PIECE_BYTES = 256 * 1024  # of a file whose client may not go on
_MAX_FIELD_BYTES = 1024
_MAX_HEAD_BYTES = 8192  # of all headers of a part
_MAX_PARTS = 2  # the file and its purpose: each more would cost time and no byte that counts
_OTHER_FORM = "the form may have one file and one purpose, and nothing else"
_MAX_NAME = 255  # characters of a file's name
_PURPOSE = "batch"
_END_SECONDS = 900.0  # for all of it to be put where --jobs-files says


@dataclass(slots=True)
class _Form:
    """What the parser has found so far; `chunks` is emptied as it is passed on."""

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


async def received(request: Request, jobs: JobsClient, owner: str) -> Fields:
    """What is known of the file, once all of it is kept. Raises RequestError, Refused, ClientLeft."""
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
                begun = await jobs.call("file_begin", owner, {"filename": form.filename, "most": int(length)})
                file_id = str(begun.fields["file_id"])
            while len(form.chunks) >= PIECE_BYTES or (form.has_ended and form.chunks):
                piece = bytes(form.chunks[:PIECE_BYTES])
                del form.chunks[:PIECE_BYTES]
                await jobs.call("file_append", owner, {"file_id": file_id}, piece)
        if not form.has_ended or file_id is None:
            raise MalformedBody("the form has no file, or no end")
        if bytes(form.fields.get("purpose", b"")) != _PURPOSE.encode():
            raise InvalidRequest(f"purpose must be {_PURPOSE}", param="purpose")
        ended = (await jobs.call("file_end", owner, {"file_id": file_id}, seconds=_END_SECONDS)).fields
        file_id = None
        return ended
    finally:
        if file_id is not None:
            await _abandon(jobs, owner, file_id)


async def _abandon(jobs: JobsClient, owner: str, file_id: str) -> None:
    try:
        await jobs.call("file_abandon", owner, {"file_id": file_id})
    except Refused:
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
