"""What can go wrong with a request, and the one table that turns it into a status and a body.

    RequestError
     ├─ InvalidRequest      400  the request itself is at fault; `param` names the field or index
     ├─ BodyTooSlow         408  the body stopped coming
     ├─ PayloadTooLarge     413
     ├─ UnsupportedMedia    415
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
from dataclasses import dataclass

import msgspec


class RequestError(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after  # seconds


class InvalidRequest(RequestError):
    """The request itself is at fault."""


class BodyTooSlow(RequestError):
    """The body stopped coming."""


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


_TABLE: dict[type[RequestError], _Row] = {
    InvalidRequest: _Row(400, "invalid_request_error", None),
    BodyTooSlow: _Row(408, "invalid_request_error", "body_too_slow"),
    PayloadTooLarge: _Row(413, "invalid_request_error", "payload_too_large"),
    UnsupportedMedia: _Row(415, "invalid_request_error", "unsupported_media_type"),
    ModelNotFound: _Row(404, "invalid_request_error", "model_not_found"),
    NoSuchRoute: _Row(404, "invalid_request_error", "unknown_url"),
    WrongMethod: _Row(405, "invalid_request_error", "method_not_supported"),
    Overloaded: _Row(429, "rate_limit_error", "overloaded"),
    NotReady: _Row(503, "server_error", "not_ready"),
    DeadlineExceeded: _Row(504, "server_error", "deadline_exceeded"),
    EngineFailed: _Row(500, "server_error", "engine_failed"),
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as it goes out."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def openai_answer(error: RequestError) -> ErrorAnswer:
    """The error in OpenAI's shape: all four keys of `error` are always there."""
    row = _TABLE[type(error)]
    shape = {"message": error.message, "type": row.type, "param": error.param, "code": row.code}
    body = msgspec.json.encode({"error": shape})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
    return ErrorAnswer(row.status, headers, body)
