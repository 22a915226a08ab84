"""What frontends and the pipelines process say to each other, as msgpack, and START of that process.

A frontend sends RUN and may send CANCEL with the same id; RESULT or REFUSED is the answer. LISTING comes first.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from server.requests.errors import ERRORS, EngineFailed, RequestError

RUN = 0x0700
CANCEL = 0x0701  # no payload, and no answer
RESULT = 0x0702  # the payload is the answer's body
REFUSED = 0x0703
LISTING = 0x0704

_CLASSES = {kind.__name__: kind for kind in ERRORS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesStart:
    """The START message of the pipelines process."""

    listener_fd: int  # where frontends connect
    file: str  # --pipelines
    http_path: str  # the Unix socket where frontends take the requests of its steps
    secret: str  # with which these act for an API key
    max_runs: int  # at a time


class Run(msgspec.Struct, frozen=True):
    """A RUN: one request."""

    pipeline: str
    owner: str  # of the API key; "" where the server has no keys
    seconds: float | None  # that the client gives it; None = as many as the pipeline may take
    body: bytes  # as it came
    is_msgpack: bool = False  # the body; else it is JSON
    answers_msgpack: bool = False


class Listed(msgspec.Struct, frozen=True):
    """A pipeline, as GET /pipelines shows it."""

    name: str
    description: str
    steps: list[str]
    timeout: float  # seconds
    input: dict[str, Any]  # JSON schemas
    output: dict[str, Any]


class _Refusal(msgspec.Struct, frozen=True):
    error: str  # name of its class
    message: str
    param: str | None
    retry_after: float | None
    reason: str


_RUNS = msgspec.msgpack.Decoder(Run)
_LISTINGS = msgspec.msgpack.Decoder(list[Listed])
_REFUSALS = msgspec.msgpack.Decoder(_Refusal)


def decode_run(payload: memoryview) -> Run:
    """Of msgspec.msgpack.encode."""
    return _RUNS.decode(payload)


def decode_listing(payload: memoryview) -> list[Listed]:
    """The same."""
    return _LISTINGS.decode(payload)


def encode_refused(error: RequestError) -> bytes:
    """A REFUSED's payload."""
    refusal = _Refusal(type(error).__name__, error.message, error.param, error.retry_after, error.reason)
    return msgspec.msgpack.encode(refusal)


def decode_refused(payload: memoryview) -> RequestError:
    """The inverse of `encode_refused`."""
    one = _REFUSALS.decode(payload)
    kind = _CLASSES.get(one.error, EngineFailed)
    return kind(one.message, param=one.param, retry_after=one.retry_after, reason=one.reason)
