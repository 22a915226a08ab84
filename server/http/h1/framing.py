"""Where the head and the body of a request end in the bytes, which heads are refused, and how.

The parser gets pieces that are cut here. Limits on whole bodies are in http/body.py.
"""

import math
import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote

from httptools import parse_url

from server.dialects.answers import openai_error
from server.http.h1.connection import Header, head_of
from server.requests.errors import HeadTooLarge, MalformedBody, RequestError

END_OF_HEAD = b"\r\n\r\n"
MAX_HEAD_BYTES = 32 * 1024  # request line and headers; the parser alone would accept hundreds of megabytes
MAX_HEADERS = 100
_MAX_CUTS = 1000  # of one body; JSON has no empty lines, and each cut costs a microsecond
_MAX_LINES = 2048  # of a piece; each chunk has two, and takes the parser about half a microsecond
_SLICE_BYTES = 8 * 1024  # of a piece that would have more lines
_METHOD = re.compile(rb"[A-Z]")  # how each method begins that the parser knows
_VERSIONS = {b" HTTP/1.1": "1.1", b" HTTP/1.0": "1.0"}
_TARGET = re.compile(rb"[A-Za-z][\w+.-]*://([^/?#]*)")  # its scheme and host
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[\w:.%~-]+\])(?::\d*)?")  # RFC 3986, 3.2.2, and a port


def end_of_head(data: bytes, start: int) -> tuple[int, str]:
    """The position where the head ends that begins at `start`, and its version of HTTP; 0 if its end has not come.

    Raises HeadTooLarge and MalformedBody.

    The parser gets heads whole: then an endless one costs no more than the bytes that it has.
    """
    end = data.find(END_OF_HEAD, start) + len(END_OF_HEAD)
    if end < len(END_OF_HEAD):
        if len(data) - start > MAX_HEAD_BYTES:
            raise too_large()
        if not _METHOD.match(data, start):  # TLS, for example
            raise not_http()
        return 0, ""
    if end - start > MAX_HEAD_BYTES:
        raise too_large()
    end_of_line = data.find(b"\r\n", start)
    version = _VERSIONS.get(data[max(start, end_of_line - 9) : end_of_line])
    if version is None or data.count(b" ", start, end_of_line) != 2:
        raise not_http()
    return end, version


def checked_headers(headers: Sequence[Header], version: str) -> dict[bytes, bytes]:
    """The headers by name; names are in lower case. Raises HeadTooLarge and MalformedBody."""
    if len(headers) > MAX_HEADERS:
        raise too_large()
    fields = dict(headers)
    names = [name for name, _ in headers] if len(fields) < len(headers) else []
    host = fields.get(b"host")
    if (host is None and version == "1.1") or names.count(b"host") > 1:
        raise MalformedBody("a request must have one host header")  # RFC 9112, section 3.2
    if host is not None and not _is_host(host):
        raise MalformedBody("the host header is not a host with or without a port")
    coding = fields.get(b"transfer-encoding")
    is_repeated = names.count(b"transfer-encoding") > 1
    if coding is not None and (coding.strip().lower() != b"chunked" or is_repeated or version == "1.0"):
        raise MalformedBody("transfer-encoding may only be chunked, and not in HTTP/1.0")
    return fields


@lru_cache(maxsize=64)  # clients ask for the same all the time
def path_and_query(target: bytes) -> tuple[str, bytes, bytes]:
    """The path of a target, its bytes as they came, and the query."""
    found = parse_url(target)
    raw = found.path or b"/"  # none, in a target such as http://host (RFC 9110, section 4.2.3)
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, raw, found.query or b""


def with_host_of_target(target: bytes, headers: list[Header]) -> list[Header]:
    """The headers, with the host of a target such as http://host/path, which outranks theirs (RFC 9112, 3.2.2).

    Raises MalformedBody.
    """
    found = _TARGET.match(target)
    if found is None:
        return headers
    if not found[1] or not _is_host(found[1]):
        raise MalformedBody("the target has no host, or one that is not a host with or without a port")
    return [*((name, value) for name, value in headers if name != b"host"), (b"host", found[1])]


@lru_cache(maxsize=16)  # clients say the same all the time
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def too_large() -> HeadTooLarge:
    """The refusal of a head, or of trailers."""
    return HeadTooLarge(f"the request's head has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers")


def not_http() -> MalformedBody:
    """The refusal of what the parser, or a rule here, does not take for HTTP."""
    return MalformedBody("the request is not valid HTTP/1.1")


class ChunkedBody:
    """One chunked body. The parser is given pieces, and tells when it meets a chunk's length or data.

    Trailers are fields that follow the last chunk. Nothing reads them, and they become no headers: they are counted
    against the limits on heads, and dropped.
    """

    def __init__(self) -> None:
        self.trailers: deque[Header] = deque(maxlen=MAX_HEADERS + 1)  # enough to see that they are too many
        self._num_bytes = 0  # up to the end of the piece that the parser has
        self._last = b""  # bytes of the pieces before, in which the end may have begun
        self._num_cuts = 0
        self.is_slice = False  # the newest piece was cut because of its many chunks; the rest is for a later turn
        self._trailers_after = math.inf  # the end of the piece with the length after which no data has come yet

    def piece(self, data: bytes, start: int) -> bytes:
        """The bytes that the parser gets next. A body ends with an empty line, so no piece goes on after one.

        After many empty lines no more are looked for, and a piece may have a part of the next request. Many small
        chunks come in slices: the parser would hold the event loop until it has all 40,000 of a read.
        """
        stop = len(data)
        if data.count(b"\r", start) > _MAX_LINES:  # the parser accepts no other end of a line
            stop = min(stop, start + _SLICE_BYTES)
        self.is_slice = stop < len(data)
        end = self._find_end(data, start, stop) if self._num_cuts < _MAX_CUTS else stop
        piece = data[start:end]
        self._last = (self._last + piece[1 - len(END_OF_HEAD) :])[1 - len(END_OF_HEAD) :]
        self._num_bytes += len(piece)
        return piece

    def _find_end(self, data: bytes, start: int, stop: int) -> int:
        reach = len(END_OF_HEAD) - 1
        begun = (self._last + data[start : start + reach]).find(END_OF_HEAD)
        found = start - len(self._last) + begun if begun >= 0 else data.find(END_OF_HEAD, start, stop)
        if found < 0 and begun < 0:
            return stop
        self._num_cuts += 1
        return found + len(END_OF_HEAD)

    def meets(self, *, data: bool) -> None:
        """The parser is past the line with a chunk's length, or at its data, so that it was not the last chunk's: only
        after that trailers may follow."""
        self._trailers_after = math.inf if data else self._num_bytes

    def check_trailers(self) -> None:
        """Raises HeadTooLarge."""
        num_bytes = sum(len(name) + len(value) for name, value in self.trailers)
        is_long = max(num_bytes, self._num_bytes - self._trailers_after) > MAX_HEAD_BYTES
        if is_long or len(self.trailers) > MAX_HEADERS:
            raise too_large()


def refusal(error: RequestError) -> bytes:
    """The whole answer to what never became a request, after which the connection closes. It has OpenAI's shape: its
    route is not known, so its dialect isn't either."""
    answer = openai_error(error)
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    if not any(name == b"connection" for name, _ in headers):
        headers.append((b"connection", b"close"))
    return head_of(answer.status, headers) + bytes(answer.body)
