"""The lines of an input file: read in pieces, checked one by one, so that a broken line fails alone."""

import secrets
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
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
_SKIPPED_BYTES = 1 << 16  # at a time, of a line that is too long


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
    """What a line asks for; `body` as it stands there."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct, frozen=True):
    custom_id: str


class LineProblem(ValueError):
    """Why a line fails. The message repeats nothing of it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


_MAX_VALUES = 1 << 16  # of a wrong line, among which its custom_id is looked for
_TEXT = msgspec.json.Decoder(str)
_REQUESTS = msgspec.json.Decoder(LineRequest)
_NAMED = msgspec.json.Decoder(_Named)


def lines_of(path: Path, *, offset: int = 0, number: int = 0) -> Iterator[Line]:
    """The lines from this byte on, `number` having been read before. Holds one at a time."""
    with path.open("rb") as file:
        file.seek(offset)
        while content := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            is_long = len(content) > MAX_LINE_BYTES
            while is_long and not content.endswith(b"\n"):
                if not (content := file.readline(_SKIPPED_BYTES)):
                    break
            if number == 1:
                content = content.removeprefix(_BOM)
            if is_long or content.strip():
                yield Line(number, file.tell(), None if is_long else content)


def custom_id_of(line: Line) -> str | None:
    """The name of a line, also of one that fails for another reason, as NaN or half of a surrogate pair in its body."""
    content = line.content or b""
    try:
        return _NAMED.decode(content).custom_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        given = value_at(content, ("custom_id",), most=_MAX_VALUES) or b""
        return _TEXT.decode(given) if given.startswith(b'"') else None


def request_of(line: Line, endpoint: str) -> LineRequest:
    """Raises LineProblem."""
    if line.content is None:
        raise LineProblem("line_too_long", f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        request = _decoded(line.content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        is_utf_8 = b"\0" not in line.content
        what = "a JSON object with custom_id, method, url and body, and nothing else" if is_utf_8 else "in UTF-8"
        raise LineProblem("invalid_line", f"the line is not {what}") from None
    if not 1 <= len(request.custom_id) <= MAX_CUSTOM_ID:
        raise LineProblem("invalid_custom_id", f"custom_id must have 1 to {MAX_CUSTOM_ID} characters")
    if request.method != "POST":
        raise LineProblem("invalid_method", "method must be POST")
    if request.url != endpoint:
        raise LineProblem("mismatched_url", f"url must be the batch's endpoint, {endpoint}")
    return request


def _decoded(content: bytes) -> LineRequest:
    """Of a value in `body` that no decoder takes, the server says which it is: it stays there as it is."""
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
    """What one pass over a file finds: 8 bytes a line are held for it."""

    total: int  # lines that are not blank
    repeated: frozenset[int]  # numbers of lines whose custom_id an earlier line has


def scan(path: Path) -> Scan | None:
    """None if the file has more than MAX_LINES lines."""
    hashes, numbers = array("Q"), array("Q")
    total = 0
    for line in lines_of(path):
        total += 1
        if total > MAX_LINES:
            return None
        if (name := custom_id_of(line)) is not None:
            hashes.append(int.from_bytes(blake2b(name.encode(), digest_size=8).digest()))
            numbers.append(line.number)
    found, of_lines = np.frombuffer(hashes, np.uint64), np.frombuffer(numbers, np.uint64)
    order = np.argsort(found, kind="stable")
    again = order[1:][found[order][1:] == found[order][:-1]]
    return Scan(total, frozenset(of_lines[again].tolist()))
