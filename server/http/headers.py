"""A request's headers to its options, in any dialect, and what an answer's headers say of an API key.

Of several things that an `accept` or `accept-encoding` header names, the one that the client prefers is taken.
"""

import itertools
import math
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache

from server.dialects.route import Headers, RequestOptions
from server.dialects.row_forms import Container
from server.requests.errors import InvalidRequest
from server.requests.key_limits import Allowance
from wire.vocabulary import RequestClass

# Each name with what it means, and how it counts among names of the same weight. Weights have at most three decimals.
# msgpack goes before JSON: it costs less at both ends, and Baseten's client, which reads both, names JSON first.
_BEFORE, _AFTER = 0.0001, -0.0001
_CONTAINERS = {
    b"application/json": (Container.JSON, 0.0),
    b"*/*": (Container.JSON, _AFTER),
    b"application/*": (Container.JSON, _AFTER),
    b"application/msgpack": (Container.MSGPACK, _BEFORE),
    b"application/x-msgpack": (Container.MSGPACK, _BEFORE),
    b"application/vnd.msgpack": (Container.MSGPACK, _BEFORE),
    b"application/octet-stream": (Container.RAW, 0.0),
    b"application/x-npy": (Container.NPY, 0.0),
    b"application/npy": (Container.NPY, 0.0),
}
_WEIGHT = re.compile(rb"\s*q=([01](?:\.\d{0,3})?)\s*")
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
        accepts=accepted_container(headers.get(b"accept", b"")),
    )


def request_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's own id of the request; None if it has none, or one that is not safe in a log."""
    for name in _REQUEST_IDS:
        given = headers.get(name)
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
    return None


def request_ids() -> Iterator[str]:
    """Ids for requests without one. No two are the same, in all processes."""
    prefix = secrets.token_hex(6)
    return (f"{prefix}{number:x}" for number in itertools.count())


def rate_limit_headers(allowance: Allowance) -> Headers:
    """Headers of what an API key may still send, in OpenAI's words."""
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


@lru_cache(maxsize=64)  # a client sends the same value each time
def accepted_container(accept: bytes) -> Container:
    """The container that rows are wanted in: the one with the highest weight, of several the first; JSON where nothing
    is named."""
    best, best_weight = Container.JSON, 0.0
    for name, weight in _weights(accept):
        if weight > 0 and name in _CONTAINERS:
            named, more = _CONTAINERS[name]
            if weight + more > best_weight:
                best, best_weight = named, weight + more
    return best


@lru_cache(maxsize=64)
def accepted_coding(accept_encoding: bytes, known: tuple[bytes, ...]) -> bytes | None:
    """The known coding that an answer may have: the one with the highest weight, of several the first known."""
    weights = dict(_weights(accept_encoding))
    best = max(known, key=lambda name: weights.get(name, 0.0))
    return best if weights.get(best, 0.0) > 0 else None


def _weights(value: bytes) -> Iterator[tuple[bytes, float]]:
    """The names of a header in lower case, each with its weight; 0 where the weight is nonsense."""
    for item in value.lower().split(b","):
        name, *parameters = item.split(b";")
        weight = 1.0
        for parameter in parameters:
            if parameter.lstrip().startswith(b"q="):
                number = _WEIGHT.fullmatch(parameter)
                weight = float(number[1]) if number else 0.0
        yield name.strip(), weight
