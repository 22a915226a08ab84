"""What a request's head may be: how long, and which headers are refused although the parser accepts them.

Knows bytes and headers, no connection.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from server.requests.errors import HeadTooLarge, MalformedBody

END_OF_HEAD = b"\r\n\r\n"
MAX_HEAD_BYTES = 32 * 1024  # request line and headers; the parser alone would accept hundreds of megabytes
MAX_HEADERS = 100

_METHOD = re.compile(rb"[A-Z]")  # how each method begins that the parser knows
_VERSIONS = (b" HTTP/1.1", b" HTTP/1.0")
_TARGET = re.compile(rb"[A-Za-z][\w+.-]*://([^/?#]*)")  # its scheme and host
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[\w:.%~-]+\])(?::\d*)?")  # RFC 3986, 3.2.2, and a port


def after_empty_lines(data: bytes, start: int) -> int:
    """Where the request line begins. Clients may send empty lines before it (RFC 9112, 2.2)."""
    return len(data) - len(data[start:].lstrip(b"\r\n"))


def end_of_head(data: bytes, start: int) -> int:
    """Where the head ends that begins at `start`; 0 if its end has not come. Raises HeadTooLarge and MalformedBody.

    The parser gets heads whole: then an endless one costs no more than the bytes that it has.
    """
    end = data.find(END_OF_HEAD, start) + len(END_OF_HEAD)
    if end < len(END_OF_HEAD):
        if len(data) - start > MAX_HEAD_BYTES:
            raise too_large()
        if not _METHOD.match(data, start):  # TLS, for example
            raise not_http()
        return 0
    if end - start > MAX_HEAD_BYTES:
        raise too_large()
    end_of_line = data.find(b"\r\n", start)
    if data.count(b" ", start, end_of_line) != 2 or not data.endswith(_VERSIONS, start, end_of_line):
        raise not_http()
    return end


def checked_headers(headers: Sequence[tuple[bytes, bytes]], version: Callable[[], str]) -> dict[bytes, bytes]:
    """The headers by name. Names are in lower case; `version` gives 1.0 or 1.1, and is called only where it matters.

    Raises HeadTooLarge and MalformedBody.
    """
    if len(headers) > MAX_HEADERS:
        raise too_large()
    fields = dict(headers)
    repeated = _repeated(headers) if len(fields) < len(headers) else frozenset()
    host = fields.get(b"host")
    if (host is None and version() == "1.1") or b"host" in repeated:
        raise MalformedBody("a request must have one host header")  # RFC 9112, section 3.2
    if host is not None and not _is_host(host):
        raise MalformedBody("the host header is not a host with or without a port")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (
        coding.strip().lower() != b"chunked" or b"transfer-encoding" in repeated or version() == "1.0"
    ):
        raise MalformedBody("transfer-encoding may only be chunked, and not in HTTP/1.0")
    return fields


def _repeated(headers: Sequence[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The names of headers that come more than once."""
    return frozenset(name for name, number in Counter(name for name, _ in headers).items() if number > 1)


def take_host_of_target(target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Puts the host of a target such as http://host/path, which outranks it, into the host header (RFC 9112, 3.2.2).

    Raises MalformedBody.
    """
    found = _TARGET.match(target)
    if found is None:
        return
    if not found[1] or not _is_host(found[1]):
        raise MalformedBody("the target has no host, or one that is not a host with or without a port")
    headers[:] = [*((name, value) for name, value in headers if name != b"host"), (b"host", found[1])]


@lru_cache(maxsize=16)  # clients say the same all the time
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def too_large() -> HeadTooLarge:
    """The refusal of a head, or of trailers."""
    return HeadTooLarge(f"the request's head has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers")


def not_http() -> MalformedBody:
    """The refusal of what the parser, or a rule here, does not take for HTTP."""
    return MalformedBody("the request is not valid HTTP/1.1")
