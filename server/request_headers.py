"""What a request's headers ask for, in any dialect."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import InvalidRequest, UnsupportedMedia
from wire.vocabulary import RequestClass

_CLASSES = {b"interactive": RequestClass.INTERACTIVE, b"bulk": RequestClass.BULK}
_MAX_TIMEOUT_MS = 24 * 3600 * 1000
_MAX_TIMEOUT_DIGITS = len(str(_MAX_TIMEOUT_MS))
_RAW = b"application/octet-stream"


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
            raw_bytes = _RAW in value and _prefers_raw(value)
        elif name == b"request-timeout-ms":
            deadline = time.monotonic() + _read_timeout(value) / 1000
        elif name == b"x-embedline-class":
            request_class = _read_class(value)
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedMedia("content-encoding is not read here; send the body as it is")
    return Wishes(request_class, deadline, raw_bytes, content_length)


def _prefers_raw(accept: bytes) -> bool:
    """Whether raw bytes are named first, or without JSON. Weights (`q=`) are not read: clients give what they like
    best first."""
    return accept.startswith(_RAW) or b"application/json" not in accept


def _read_timeout(value: bytes) -> int:
    milliseconds = int(value) if value.isdigit() and len(value) <= _MAX_TIMEOUT_DIGITS else 0
    if not 1 <= milliseconds <= _MAX_TIMEOUT_MS:
        raise InvalidRequest(
            f"request-timeout-ms must be a whole number from 1 to {_MAX_TIMEOUT_MS}", param="request-timeout-ms"
        )
    return milliseconds


def _read_class(value: bytes) -> RequestClass:
    request_class = _CLASSES.get(value.lower())
    if request_class is None:
        raise InvalidRequest("x-embedline-class must be interactive or bulk", param="x-embedline-class")
    return request_class
