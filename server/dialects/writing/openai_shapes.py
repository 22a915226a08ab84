"""The parts of OpenAI's API that other dialects use too: the shape of errors, and token usage."""

import msgspec

from server.dialects.route import Answer, error_answer
from server.requests import errors
from server.requests.errors import RequestError

# The `type` and the `code` of each error.
_INVALID = "invalid_request_error"
ERROR_NAMES: dict[type[RequestError], tuple[str, str | None]] = {
    errors.InvalidRequest: (_INVALID, None),
    errors.EmptyInput: (_INVALID, None),
    errors.MalformedBody: (_INVALID, None),
    errors.NotTokenizable: (_INVALID, None),
    errors.UnsupportedTask: (_INVALID, "unsupported_task"),
    errors.Unauthorized: (_INVALID, "invalid_api_key"),
    errors.Forbidden: (_INVALID, "forbidden"),
    errors.ModelNotFound: (_INVALID, "model_not_found"),
    errors.NoSuchRoute: (_INVALID, "unknown_url"),
    errors.WrongMethod: (_INVALID, "method_not_supported"),
    errors.BodyTooSlow: (_INVALID, "body_too_slow"),
    errors.PayloadTooLarge: (_INVALID, "payload_too_large"),
    errors.UnsupportedMedia: (_INVALID, "unsupported_media_type"),
    errors.HeadTooLarge: (_INVALID, "head_too_large"),
    errors.Overloaded: ("rate_limit_error", "overloaded"),
    errors.EngineFailed: ("server_error", "engine_failed"),
    errors.NotReady: ("server_error", "not_ready"),
    errors.DeadlineExceeded: ("server_error", "deadline_exceeded"),
}


def openai_error(error: RequestError) -> Answer:
    """An error in OpenAI's shape: all four keys of `error` are always there."""
    kind, code = ERROR_NAMES[type(error)]
    content = {"message": error.message, "type": kind, "param": error.param, "code": code}
    return error_answer(errors.ERRORS[type(error)].status, {"error": content}, error)


class Usage(msgspec.Struct):
    """The tokens of a request."""

    prompt_tokens: int
    total_tokens: int
    truncated_inputs: int
