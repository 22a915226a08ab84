"""What can go wrong with a request, and the one table that turns it into a status and a body.

    RequestError
     ├─ InvalidRequest      400  the request itself is at fault; `param` names the field or index
     ├─ EmptyInput          400  there is nothing to compute; `param` as above
     ├─ MalformedBody       400  the body is not JSON
     ├─ NotTokenizable      400  the tokenizer can't take a text, or ids; `param` as above
     ├─ UnsupportedTask     400  the served model does not do this
     ├─ Unauthorized        401  no API key, or a wrong one
     ├─ BodyTooSlow         408  the body stopped coming, or comes too slowly
     ├─ PayloadTooLarge     413
     ├─ UnsupportedMedia    415
     ├─ HeadTooLarge        431  too many or too long headers
     ├─ ModelNotFound       404
     ├─ NoSuchRoute         404
     ├─ WrongMethod         405
     ├─ Overloaded          429  try again after `retry_after`
     ├─ NotReady            503  try again after `retry_after`
     ├─ DeadlineExceeded    504
     └─ EngineFailed        500

Messages name the field, flag or index; they never repeat what the client sent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


class RequestError(Exception):
    """A request that gets an error for an answer.

    reason  a word for the metrics where the class alone does not say it; one of a few
    """

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None, reason: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after  # seconds
        self.reason = reason


class InvalidRequest(RequestError):
    """The request itself is at fault."""


class EmptyInput(RequestError):
    """There is nothing to compute."""


class MalformedBody(RequestError):
    """The body is not JSON."""


class NotTokenizable(RequestError):
    """The tokenizer can't take a text, or make one of ids."""


class UnsupportedTask(RequestError):
    """The served model does not do this."""


class Unauthorized(RequestError):
    """No API key, or a wrong one."""


class HeadTooLarge(RequestError):
    """Too many or too long headers."""


class BodyTooSlow(RequestError):
    """The body, or the head, stopped coming or comes too slowly."""


class PayloadTooLarge(RequestError):
    """The body is over the limit."""


class UnsupportedMedia(RequestError):
    """The body is in a form that is not read here."""


class ModelNotFound(RequestError):
    """No model of that name is served."""


class NoSuchRoute(RequestError):
    """Nothing is at this path."""


class WrongMethod(RequestError):
    """The path is right, the method is not."""


class Overloaded(RequestError):
    """More work waits than can be done in time."""


class NotReady(RequestError):
    """Nothing can compute right now."""


class DeadlineExceeded(RequestError):
    """The client's own deadline passed."""


class EngineFailed(RequestError):
    """The engine failed on this request."""


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    type: str  # OpenAI's error.type
    code: str | None  # OpenAI's error.code
    tei_status: int
    tei_type: str  # TEI's error_type


_INVALID = "invalid_request_error"
# fmt: off
_TABLE: dict[type[RequestError], _Row] = {
    InvalidRequest:   _Row(400, _INVALID, None, 422, "Validation"),
    EmptyInput:       _Row(400, _INVALID, None, 400, "Empty"),
    MalformedBody:    _Row(400, _INVALID, None, 400, "Validation"),
    NotTokenizable:   _Row(400, _INVALID, None, 422, "Tokenizer"),
    UnsupportedTask:  _Row(400, _INVALID, "unsupported_task", 424, "Backend"),
    Unauthorized:     _Row(401, _INVALID, "invalid_api_key", 401, "Unauthorized"),
    BodyTooSlow:      _Row(408, _INVALID, "body_too_slow", 408, "Validation"),
    PayloadTooLarge:  _Row(413, _INVALID, "payload_too_large", 413, "Validation"),
    UnsupportedMedia: _Row(415, _INVALID, "unsupported_media_type", 415, "Validation"),
    HeadTooLarge:     _Row(431, _INVALID, "head_too_large", 431, "Validation"),
    ModelNotFound:    _Row(404, _INVALID, "model_not_found", 404, "Validation"),
    NoSuchRoute:      _Row(404, _INVALID, "unknown_url", 404, "Validation"),
    WrongMethod:      _Row(405, _INVALID, "method_not_supported", 405, "Validation"),
    Overloaded:       _Row(429, "rate_limit_error", "overloaded", 429, "Overloaded"),
    NotReady:         _Row(503, "server_error", "not_ready", 503, "Unhealthy"),
    DeadlineExceeded: _Row(504, "server_error", "deadline_exceeded", 504, "Overloaded"),
    EngineFailed:     _Row(500, "server_error", "engine_failed", 424, "Backend"),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as it goes out, less content-length."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


ErrorShape = Callable[[RequestError], ErrorAnswer]


def openai_answer(error: RequestError) -> ErrorAnswer:
    """The error in OpenAI's shape: all four keys of `error` are always there."""
    row = _TABLE[type(error)]
    shape = {"message": error.message, "type": row.type, "param": error.param, "code": row.code}
    return _answer(row.status, {"error": shape}, error)


def tei_answer(error: RequestError) -> ErrorAnswer:
    """The error as text-embeddings-inference has it on its own routes (router/src/http/types.rs, ErrorResponse)."""
    row = _TABLE[type(error)]
    message = f"`{error.param}` cannot be empty" if isinstance(error, EmptyInput) else error.message  # TEI's words
    return _answer(row.tei_status, {"error": message, "error_type": row.tei_type}, error)


def voyage_answer(error: RequestError) -> ErrorAnswer:
    """The error as Voyage's client reads it."""
    return _answer(_TABLE[type(error)].status, {"detail": error.message}, error)


def _answer(status: int, shape: dict[str, Any], error: RequestError) -> ErrorAnswer:
    body = msgspec.json.encode(shape)
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, BodyTooSlow):  # what is still to come would keep the connection open
        headers.append((b"connection", b"close"))
    return ErrorAnswer(status, headers, body)
