"""A request's headers to its options, in any dialect, and what an answer's headers say of an API key."""

import itertools
import math
import re
import secrets
import time
from collections.abc import Iterator, Mapping

from server.dialects.route import Headers, RequestOptions
from server.http import accept
from server.requests.admission.key_ceilings import Allowance
from server.requests.errors import InvalidRequest
from wire.vocabulary import RequestClass

_CLASSES = {b"interactive": RequestClass.INTERACTIVE, b"bulk": RequestClass.BULK}
_MAX_TIMEOUT_MS = 24 * 3600 * 1000
_MAX_TIMEOUT_DIGITS = len(str(_MAX_TIMEOUT_MS))
_TIMEOUTS = (b"request-timeout-ms", b"x-request-timeout-ms")  # milliseconds from now
_DEADLINE = b"request-deadline-ms"  # milliseconds since 1970, by the client's clock, as Baseten's client sends it
_MAX_DEADLINE_DIGITS = 15
_REQUEST_IDS = (b"x-request-id", b"x-baseten-customer-request-id")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def read_options(headers: Mapping[bytes, bytes]) -> RequestOptions:
    """Raises InvalidRequest, naming the header. Names are in lower case."""
    return RequestOptions(
        request_class=_read_class(headers),
        deadline=_read_deadline(headers),
        accepts=accept.container(headers.get(b"accept", b"")),
    )


def request_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's own id of the request; None if it has none, or one that is not safe in a log."""
    for name in _REQUEST_IDS:
        given = headers.get(name)
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
    return None


def request_ids() -> Iterator[str]:
    """For requests without one. No two are the same, in all processes."""
    prefix = secrets.token_hex(6)
    return (f"{prefix}{number:x}" for number in itertools.count())


def rate_limit_headers(allowance: Allowance) -> Headers:
    """What an API key may still send, in OpenAI's words."""
    minutes, seconds = divmod(math.ceil(allowance.reset_seconds), 60)
    return [
        (b"x-ratelimit-limit-tokens", b"%d" % allowance.limit),
        (b"x-ratelimit-remaining-tokens", b"%d" % allowance.remaining),
        (b"x-ratelimit-reset-tokens", b"%dm%ds" % (minutes, seconds) if minutes else b"%ds" % seconds),
    ]


def _read_deadline(headers: Mapping[bytes, bytes]) -> float:
    """The earliest of all that are given: the client and a proxy may each set one."""
    deadline = math.inf
    for name in _TIMEOUTS:
        if (value := headers.get(name)) is not None:
            deadline = min(deadline, time.monotonic() + _read_timeout(value, name.decode()) / 1000)
    if (value := headers.get(_DEADLINE)) is not None:
        if not value.isdigit() or len(value) > _MAX_DEADLINE_DIGITS:
            raise InvalidRequest("request-deadline-ms must be milliseconds since 1970", param="request-deadline-ms")
        deadline = min(deadline, time.monotonic() + int(value) / 1000 - time.time())
    return deadline


def _read_timeout(value: bytes, name: str) -> int:
    milliseconds = int(value) if value.isdigit() and len(value) <= _MAX_TIMEOUT_DIGITS else 0
    if not 1 <= milliseconds <= _MAX_TIMEOUT_MS:
        raise InvalidRequest(f"{name} must be a whole number from 1 to {_MAX_TIMEOUT_MS}", param=name)
    return milliseconds


def _read_class(headers: Mapping[bytes, bytes]) -> RequestClass | None:
    value = headers.get(b"x-embedline-class")
    if value is None:
        return None
    request_class = _CLASSES.get(value.lower())
    if request_class is None:
        raise InvalidRequest("x-embedline-class must be interactive or bulk", param="x-embedline-class")
    return request_class
