"""An answer and its parts, and errors in the shapes that several dialects share: OpenAI's, and that of Ollama and
Weaviate, whose `error` is one text.
"""

import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from server.requests import errors
from server.requests.errors import ERRORS, BodyTooSlow, NotReady, RequestError, Unauthorized
from wire.frames import Buffer

Headers = list[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")
METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"  # Prometheus's text format


class Answer(NamedTuple):
    """A whole answer, without the headers that every answer gets."""

    status: int
    headers: Headers
    body: bytes | bytearray | memoryview


@dataclass(slots=True)
class Streamed:
    """An answer of which one piece is in memory at a time. What `pieces` raises before the first piece is answered
    with an error; an answer that ends before all its bytes have come is cut off."""

    status: int
    headers: Headers
    num_bytes: int  # of all pieces
    pieces: AsyncIterator[Buffer]
    body: Buffer = b""  # the piece that is being sent


ErrorShape = Callable[[RequestError], Answer]


def json_answer(content: Any, *more_headers: tuple[bytes, bytes], status: int = 200) -> Answer:
    """An answer of which msgspec makes the JSON, if it is not made."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Answer(status, [JSON, *more_headers], body)


def retry_header(seconds: float) -> tuple[bytes, bytes]:
    """When a client should ask again, in whole seconds, so as not to ask too early."""
    return (b"retry-after", b"%d" % max(1, math.ceil(seconds)))


def text_answer(
    text: str, status: int = 200, headers: Headers | None = None, *, kind: bytes = b"text/plain; charset=utf-8"
) -> Answer:
    """An answer in plain text."""
    return Answer(status, [(b"content-type", kind), *(headers or ())], text.encode())


def not_ready_answer(reason: str) -> Answer:
    """The 503 of routes for health, in plain text."""
    return text_answer(reason, 503, [retry_header(ERRORS[NotReady].retry_after)])


def error_answer(status: int, content: dict[str, Any], error: RequestError) -> Answer:
    """An error with this JSON as its body, and the headers that go with it."""
    headers = [JSON]
    if error.retry_after is not None:
        headers.append(retry_header(error.retry_after))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, BodyTooSlow):  # the rest of the body would keep the connection open
        headers.append((b"connection", b"close"))
    return Answer(status, headers, msgspec.json.encode(content))


_INVALID = "invalid_request_error"


class ErrorNames(NamedTuple):
    """The names by which OpenAI's and TEI's clients know a class of errors."""

    kind: str  # OpenAI's `type`
    code: str | None  # OpenAI's
    tei_type: str


# fmt: off
ERROR_NAMES: dict[type[RequestError], ErrorNames] = {
    errors.InvalidRequest:   ErrorNames(_INVALID, None, "Validation"),
    errors.EmptyInput:       ErrorNames(_INVALID, None, "Empty"),
    errors.MalformedBody:    ErrorNames(_INVALID, None, "Validation"),
    errors.NotTokenizable:   ErrorNames(_INVALID, None, "Tokenizer"),
    errors.UnsupportedTask:  ErrorNames(_INVALID, "unsupported_task", "Backend"),
    errors.Unauthorized:     ErrorNames(_INVALID, "invalid_api_key", "Unauthorized"),
    errors.Forbidden:        ErrorNames(_INVALID, "forbidden", "Unauthorized"),
    errors.ModelNotFound:    ErrorNames(_INVALID, "model_not_found", "Validation"),
    errors.NoSuchRoute:      ErrorNames(_INVALID, "unknown_url", "Validation"),
    errors.NotFound:         ErrorNames(_INVALID, "not_found", "Validation"),
    errors.Conflict:         ErrorNames(_INVALID, "conflict", "Validation"),
    errors.WrongMethod:      ErrorNames(_INVALID, "method_not_supported", "Validation"),
    errors.BodyTooSlow:      ErrorNames(_INVALID, "body_too_slow", "Validation"),
    errors.PayloadTooLarge:  ErrorNames(_INVALID, "payload_too_large", "Validation"),
    errors.UnsupportedMedia: ErrorNames(_INVALID, "unsupported_media_type", "Validation"),
    errors.HeadTooLarge:     ErrorNames(_INVALID, "head_too_large", "Validation"),
    errors.Overloaded:       ErrorNames("rate_limit_error", "overloaded", "Overloaded"),
    errors.EngineFailed:     ErrorNames("server_error", "engine_failed", "Backend"),
    errors.NotReady:         ErrorNames("server_error", "not_ready", "Unhealthy"),
    errors.DeadlineExceeded: ErrorNames("server_error", "deadline_exceeded", "Overloaded"),
}
# fmt: on


def openai_error(error: RequestError, **own: str | int) -> Answer:
    """An error in OpenAI's shape: all four keys of `error` are always there; `own` are those that differ.

    Beside it stands what other APIs' clients read at the top: Cohere's `message`, Voyage's `detail`, and the `message`,
    `code` and `type` of TEI's own OpenAI route. A client may come with any of them where the body is not known yet.
    """
    status, tei_type = errors.ERRORS[type(error)].status, ERROR_NAMES[type(error)].tei_type
    flat = {"message": error.message, "detail": error.message, "code": status, "type": tei_type}
    return error_answer(status, {"error": error_fields(error) | own, **flat}, error)


def error_fields(error: RequestError) -> dict[str, str | None]:
    """The fields of an error that OpenAI's clients read."""
    names = ERROR_NAMES[type(error)]
    return {"message": error.message, "type": names.kind, "param": error.param, "code": names.code}


def text_error(error: RequestError) -> Answer:
    """The message alone."""
    return error_answer(ERRORS[type(error)].status, {"error": error.message}, error)
