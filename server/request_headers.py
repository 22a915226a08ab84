"""What a request's headers ask for, in any dialect."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import InvalidRequest, UnsupportedMedia
from wire.vocabulary import RequestClass

_CLASSES = {b"interactive": RequestClass.INTERACTIVE, b"bulk": RequestClass.BULK}
_MAX_TIMEOUT_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Wishes:
    """Beside what the body says."""

    request_class: RequestClass | None = None  # None = by the request's size
    deadline: float = math.inf  # time.monotonic() seconds
    raw_bytes: bool = False  # rows as application/octet-stream
    content_length: int | None = None


def read_headers(headers: Sequence[tuple[bytes, bytes]]) -> Wishes:
    """Raises InvalidRequest and UnsupportedMedia, naming the header. Names come in lower case."""
    request_class: RequestClass | None = None
    deadline = math.inf
    raw_bytes = False
    content_length = None
    for name, value in headers:
        if name == b"content-length":
            content_length = int(value)  # the HTTP parser has checked it
        elif name == b"accept":
            raw_bytes = b"application/octet-stream" in value
        elif name == b"request-timeout-ms":
            deadline = time.monotonic() + _read_timeout(value) / 1000
        elif name == b"x-embedline-class":
            request_class = _read_class(value)
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedMedia("content-encoding is not read here; send the body as it is")
    return Wishes(request_class, deadline, raw_bytes, content_length)


def _read_timeout(value: bytes) -> int:
    if not value.isdigit() or not 1 <= int(value[:12]) <= _MAX_TIMEOUT_MS:
        raise InvalidRequest(
            f"request-timeout-ms must be a whole number from 1 to {_MAX_TIMEOUT_MS}", param="request-timeout-ms"
        )
    return int(value)


def _read_class(value: bytes) -> RequestClass:
    request_class = _CLASSES.get(value.lower())
    if request_class is None:
        raise InvalidRequest("x-embedline-class must be interactive or bulk", param="x-embedline-class")
    return request_class
