"""Errors in the shapes that several dialects share: OpenAI's, and that of Ollama and Weaviate, whose `error` is one
text.
"""

from typing import NamedTuple

from server.dialects.route import Answer, error_answer
from server.requests import errors
from server.requests.errors import ERRORS, RequestError

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
