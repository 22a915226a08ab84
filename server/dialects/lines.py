"""Bodies and answers of lines (NDJSON), for routes that embed with OpenAI's API.

A line is a text, or an object: the route's body with one input, and an `id` if it likes. Its answer is a line too.
Lines that ask for the same are embedded together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from server.dialects.answers import error_fields
from server.dialects.fields.rows import ENCODING_FORMAT, ON_ERROR, wrong_on_error
from server.dialects.fields.texts import LATE_CHUNKING, LATE_CHUNKING_PARAMS
from server.dialects.reading.json_body import parse
from server.dialects.row_answers import Ranges, RowForm, row_values, scale_of
from server.requests.errors import InvalidRequest, RequestError
from server.requests.work import Chunking, Embedded, EmbedRequest
from wire.json_values import value_at

_MAX_VALUES = 1000  # of a wrong line, among which its id is looked for
_TEXT = msgspec.json.Decoder(str)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


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
            parse(_TEXT, data, "line")
            return Line(index, data)
        if not data.startswith(b"{"):
            raise InvalidRequest("a line must be a text or an object with `input`", param="line")
        fields = parse(_FIELDS, data, "line")
        own_id = _read_id(fields.pop("id", None))
        return _read_object(fields, index, own_id)
    except RequestError as error:
        if not own_id and data.startswith(b"{"):
            own_id = _id_of_wrong_line(data)
        error.__context__ = None
        return Line(index, id=own_id, error=error.with_traceback(None))  # these would keep the frames, and all in them


def _read_id(value: msgspec.Raw | None) -> bytes:
    """The id as it was written, so no digit of a number is lost. Raises InvalidRequest."""
    own_id = b"" if value is None else bytes(value)
    if own_id in (b"", b"null"):
        return b""
    if own_id.startswith(b'"'):
        parse(_TEXT, own_id, "id")
    elif own_id[0] not in b"-0123456789":
        raise InvalidRequest("id must be a text or a number", param="id")
    return own_id


def _id_of_wrong_line(data: bytes) -> bytes:
    """The id of a line that can't be read as a whole, if it stands near the line's beginning."""
    given = value_at(data, ("id",), most=_MAX_VALUES)
    try:
        return b"" if given is None else _read_id(msgspec.Raw(given))
    except RequestError:
        return b""


def _read_object(fields: dict[str, msgspec.Raw], index: int, own_id: bytes) -> Line:
    """The line of an object without its id."""
    given = bytes(fields.pop("input", b""))
    if not given.startswith((b'"', b"[")):
        raise InvalidRequest("input must be a text or a list of token ids", param="input")
    if ON_ERROR in fields:
        raise wrong_on_error("can't be given in a line: each fails alone")
    options = b",".join(b"%b:%b" % (msgspec.json.encode(name), value) for name, value in fields.items())
    return Line(index, given, options, own_id)


def body_of(lines: Sequence[Line]) -> bytes:
    """The route's own body for one line, or for several with the same options."""
    if len(lines) == 1:
        fields = [b'"input":' + lines[0].input]
    else:
        fields = [b'"input":[%b]' % b",".join(line.input for line in lines), b'"on_error":"null"']
    return b"{%b}" % b",".join([*fields, lines[0].options] if lines[0].options else fields)


def check_lines(lines: Sequence[Line], work: EmbedRequest, form: RowForm) -> None:
    """Raises InvalidRequest for what a line can't ask for."""
    if work.is_single != (len(lines) == 1) or work.num_items != len(lines):
        raise InvalidRequest("a line must have one text or one list of token ids", param="input")
    if form.has_rows_alone:
        raise InvalidRequest("encoding_format can't be bytes in lines; base64 can", param=ENCODING_FORMAT)
    if work.chunking is Chunking.LATE:
        raise InvalidRequest("late_chunking needs all chunks in one body, and a line has one text", param=LATE_CHUNKING)
    if work.chunking is Chunking.FIXED:
        raise InvalidRequest(
            "late_chunking_params gives several rows, and a line of the answer has one", param=LATE_CHUNKING_PARAMS
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


def row_lines(lines: Sequence[Line], ranges: Ranges | None, embedded: Embedded, form: RowForm) -> list[bytes]:
    """A line for each row, also for those that failed. Raises InvalidRequest."""
    scale = scale_of(embedded.rows.shape[1], form, ranges)
    more = b',"scale":"%b"' % scale if scale else b""
    values: Any = zip(lines, row_values(embedded.rows, form, ranges), embedded.truncated.tolist(), strict=True)
    return [
        answer_line(line, b'"embedding":%b%b%b' % (value, more, b',"truncated":true' if is_cut else b""))
        for line, value, is_cut in values
    ]
