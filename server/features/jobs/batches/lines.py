"""The lines of an input file: read in pieces, checked one by one, so that a broken line fails alone."""

import secrets
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from wire.json_values import is_wrong, marked, value_at, values, without_escapes

MAX_LINE_BYTES = 4 << 20
MAX_LINES = 1_000_000
MAX_CUSTOM_ID = 512  # characters, as OpenAI has it
_BOM = b"\xef\xbb\xbf"  # which some editors put before everything else
ENDPOINTS = ("/v1/embeddings", "/v1/rerank", "/v1/score", "/classify")
_SKIPPED_BYTES = 1 << 16  # at a time, of a line that is too long, and of blank ones
_SLICE_BYTES, _SLICE_LINES = 16 << 20, 4096  # read at a time; between two slices it can be stopped
_TAKEN_BYTES = 4 << 20  # at a time, and a line more
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank.

    number  counts from 1, with the blank ones
    end     where the next line begins, in bytes
    """

    number: int
    end: int
    content: bytes | None  # None = too long


class LineRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a line; `body` as it stands there."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct, frozen=True):
    custom_id: str


class LineProblem(ValueError):
    """The reason why a line fails. The message repeats nothing of it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


_MAX_VALUES = 1 << 16  # of a wrong line, among which its custom_id is looked for
_TEXT = msgspec.json.Decoder(str)
_TOO_DEEP = "the line is nested too deeply"
_NO_REQUEST = "the line is not a JSON object with custom_id, method, url and body, and nothing else"
_REQUESTS = msgspec.json.Decoder(LineRequest)
_NAMED = msgspec.json.Decoder(_Named)


def lines_of(path: Path, *, offset: int = 0, number: int = 0) -> Iterator[Line | None]:
    """The lines from this byte on, `number` having been read before; None after each slice that has no more.

    Holds one line at a time.
    """
    with BufferedReader(FileIO(path), _SKIPPED_BYTES) as file:
        file.seek(offset)
        slice_end = offset + _SLICE_BYTES
        while content := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            is_long = len(content) > MAX_LINE_BYTES
            while is_long and not content.endswith(b"\n"):
                if not (content := file.readline(_SKIPPED_BYTES)):
                    break
                if file.tell() >= slice_end:
                    slice_end = file.tell() + _SLICE_BYTES
                    yield None
            if number == 1:
                content = content.removeprefix(_BOM)
            if is_long or content.strip():
                yield Line(number, file.tell(), None if is_long else content)
            else:
                number += _skip_blank_lines(file)
            if file.tell() >= slice_end:
                slice_end = file.tell() + _SLICE_BYTES
                yield None


def _skip_blank_lines(file: "BufferedReader[FileIO]") -> int:
    """Skips blank lines and returns how many there were: a file may be of nothing else, so they are not read one by
    one."""
    found = file.peek()
    end = found.rfind(b"\n", 0, len(found) - len(found.lstrip())) + 1
    return file.read(end).count(b"\n")


def next_lines(lines: Iterator[Line | None], count: int) -> tuple[list[Line], bool]:
    """Some lines, none perhaps where many are blank; and whether there is no more. Blocking, but not for long."""
    taken: list[Line] = []
    num_bytes = 0
    for line in islice(lines, count):
        if line is None:
            return taken, False
        taken.append(line)
        num_bytes += len(line.content or b"")
        if num_bytes >= _TAKEN_BYTES:
            return taken, False
    return taken, len(taken) < count


def custom_id_of(line: Line) -> str | None:
    """The name of a line, also of one that fails for another reason, as NaN or half of a surrogate pair in its body."""
    content = line.content or b""
    try:
        return _NAMED.decode(content).custom_id
    except _UNREADABLE:
        given = value_at(content, ("custom_id",), most=_MAX_VALUES) or b""
        return _TEXT.decode(given) if given.startswith(b'"') else None


def request_of(line: Line, endpoint: str) -> LineRequest:
    """The request of a line. Raises LineProblem."""
    if line.content is None:
        raise LineProblem("line_too_long", f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        request = _decoded(line.content)
    except _UNREADABLE as error:
        is_deep = isinstance(error, RecursionError)
        is_text = b"\0" not in line.content
        words = _TOO_DEEP if is_deep else _NO_REQUEST if is_text else "the line is not in UTF-8"
        raise LineProblem("invalid_line", words) from None
    if not 1 <= len(request.custom_id) <= MAX_CUSTOM_ID:
        raise LineProblem("invalid_custom_id", f"custom_id must have 1 to {MAX_CUSTOM_ID} characters")
    if request.method != "POST":
        raise LineProblem("invalid_method", "method must be POST")
    if request.url != endpoint:
        raise LineProblem("mismatched_url", f"url must be the batch's endpoint, {endpoint}")
    return request


def _decoded(content: bytes) -> LineRequest:
    """Decodes a line. A value in `body` that no decoder takes stays as it is: the server says which it is."""
    try:
        return _REQUESTS.decode(content)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        found = islice(values(without_escapes(content)), _MAX_VALUES)
        wrong = [value for value in found if value.path[:1] == ("body",) and is_wrong(content, value)]
        if not wrong:
            raise
    mark = b'"%b"' % secrets.token_hex(16).encode()
    request = _REQUESTS.decode(marked(content, wrong, mark))
    between = bytes(request.body).split(mark)
    parts = [content[value.start : value.stop] + rest for value, rest in zip(wrong, between[1:], strict=True)]
    return msgspec.structs.replace(request, body=msgspec.Raw(between[0] + b"".join(parts)))


@dataclass(frozen=True, slots=True)
class Scan:
    """The findings of one pass over a file. It takes 16 bytes a line, and leaves a bit a line where names are
    repeated."""

    total: int  # lines that are not blank
    repeated: bytes = b""  # bits of these lines: whether an earlier line has the same custom_id; "" = none has

    def is_repeated(self, index: int) -> bool:
        """Whether the line's name is repeated; `index` counts the lines that are not blank, from 0."""
        return bool(self.repeated) and bool(self.repeated[index // 8] >> index % 8 & 1)


def scan(path: Path, stops: Callable[[], bool] = lambda: False) -> Scan | None:
    """Returns None if the file has more than MAX_LINES lines. Blocking, and soon over when `stops` says so."""
    hashes, indices = array("Q"), array("Q")
    total = 0
    for line in lines_of(path):
        if (line is None or total % _SLICE_LINES == 0) and stops():
            break
        if line is None:
            continue
        if total == MAX_LINES:
            return None
        if (name := custom_id_of(line)) is not None:
            hashes.append(int.from_bytes(blake2b(name.encode(), digest_size=8).digest()))
            indices.append(total)
        total += 1
    found, of_lines = np.frombuffer(hashes, np.uint64), np.frombuffer(indices, np.uint64)
    order = np.argsort(found, kind="stable")
    again = of_lines[order[1:][found[order][1:] == found[order][:-1]]]
    if not len(again):
        return Scan(total)
    bits = np.zeros(total, np.bool_)
    bits[again] = True
    return Scan(total, np.packbits(bits, bitorder="little").tobytes())
