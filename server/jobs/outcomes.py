"""What an answer of the server means for a request: whether it is tried again, and how it ends, in Baseten's words."""

from typing import Any

import msgspec

from server.jobs.http_client import HttpAnswer
from server.jobs.types import Finished, JobError, Result, Status

BUSY = frozenset({429, 503})  # the server had no room, and has computed nothing
FAILED_FOR_NOW = frozenset({424, 500, 502, 504})  # the next attempt may be better; 424 is TEI's word for 500
_CODES = {
    **dict.fromkeys((400, 413, 415, 422), "MODEL_INVALID_INPUT"),
    404: "MODEL_DOES_NOT_EXIST",
    504: "MODEL_PREDICT_TIMEOUT",
    **dict.fromkeys((424, 500, 502), "MODEL_PREDICT_ERROR"),
}
_KEPT_HEADERS = ("x-embedline-", "x-compute-", "metadata", "content-encoding")  # what their names begin with
_MAX_MESSAGE = 500  # characters


def of(answer: HttpAnswer) -> Finished:
    """How a request with this answer ends. Its errors have the answer too, as the route gave it."""
    result = Result(
        status_code=answer.status,
        headers=tuple((name, value) for name, value in answer.headers.items() if name.startswith(_KEPT_HEADERS)),
        body=answer.body,
        content_type=answer.headers.get("content-type", "application/octet-stream"),
    )
    if answer.status == 200:
        return Finished(Status.SUCCEEDED, result)
    code = _CODES.get(answer.status, "INTERNAL_SERVER_ERROR")
    return Finished(Status.FAILED, result, (JobError(code, f"status {answer.status}: {_message(answer.body)}"),))


def failed(code: str, message: str) -> Finished:
    """The end of a request that got no answer."""
    return Finished(Status.FAILED, errors=(JobError(code, message),))


def _message(body: bytes) -> str:
    """Of an error in any dialect's shape; they never repeat what the client sent."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        fields = {}
    texts = (text for text in (fields.get("message"), fields.get("error")) if isinstance(text, str))
    return next(texts, "an error without a message")[:_MAX_MESSAGE]
