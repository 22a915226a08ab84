"""The errors of a request: the classes, and one table with the status and the metrics' word for each.

Messages name the field, flag or index; they never repeat what the client sent. How an error looks in an answer is up to
each dialect.
"""

import re
from typing import NamedTuple

_INDEX = re.compile(r"\[[^]]*\]")
# Codes of problems, and the words of messages that they stand for. Messages are part of the API, so the words stay.
_PROBLEM = re.compile(
    r"(?P<missing>is missing|must be given|must have|has none of)"
    r"|(?P<empty>must not (?:both )?be empty|must not be an empty|has no tokens)"
    r"|(?P<unknown_field>contains unknown field|is not known here)"
    r"|(?P<unsupported>not supported)"
    r"|(?P<conflict>can't (?:both )?be given|give one of them|differs from|asks? for (?:another|different))"
    r"|(?P<too_long>is longer than|is too large|has more|may have)"
    r"|(?P<too_deep>is nested)"
    r"|(?P<not_valid>is not valid)"
    r"|(?P<out_of_range>must be (?:at least|at most|from)|is not from|must not be negative)"
    r"|(?P<not_one_of>must (?:be|name) one of|is not one|: invalid"
    r"|must be (?!(?:an?|the|pairs|texts|two|ids)\b|.* on this route)\w+(?:, \w+)* or \w+)"
    r"|(?P<wrong_type>: expected|must be (?:a|an|the|pairs|texts|two|ids)\b)"
    r"|(?P<not_allowed>must be|can't be|does not take)"
)
IS_NO_TEXT = "is not valid JSON in UTF-8 (another encoding, as Latin-1, and half of a surrogate pair are not)"


class RequestError(Exception):
    """A request that is answered with an error.

    param   the field, header or index that is wrong
    own_param  as much of `param` as has names of ours, for the log, there without indices: `input[]`
    reason  the label of embedline_rejected_total; by default the one that `ERRORS` has for the class
    retry_after  seconds after which a client should ask again, None = never; by default what the tables below have
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        own_param: str | None = None,
        retry_after: float | None = None,
        reason: str = "",
    ) -> None:
        """`own_param` must be given where a client may have chosen a name in `param`."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.own_param = _INDEX.sub("[]", (param if own_param is None else own_param) or "")
        row = ERRORS[type(self)]
        self.reason = reason or row.reason
        own = RETRY_AFTER.get(self.reason, row.retry_after) or None
        self.retry_after = own if retry_after is None else retry_after

    @property
    def problem(self) -> str:
        """A code for what is wrong, from a fixed list, because the message may name what only the client knows."""
        found = _PROBLEM.search(self.message)
        return (found and found.lastgroup) or ""


class InvalidRequest(RequestError):
    """The request is wrong."""


class EmptyInput(RequestError):
    """There is nothing to compute."""


class MalformedBody(RequestError):
    """The body is not JSON."""


class NotTokenizable(RequestError):
    """The tokenizer fails on a text or on token ids."""


class UnsupportedTask(RequestError):
    """The served model does not do this."""


class Unauthorized(RequestError):
    """No API key, or a wrong one."""


class Forbidden(RequestError):
    """The Host header names another server, or the Origin header a web page that may not use this one."""


class HeadTooLarge(RequestError):
    """Too many or too long headers."""


class BodyTooSlow(RequestError):
    """The head or the body stopped coming or comes too slowly."""


class PayloadTooLarge(RequestError):
    """The body is over the limit."""


class UnsupportedMedia(RequestError):
    """The body has an encoding that the server does not read."""


class ModelNotFound(RequestError):
    """No model of that name is served."""


class NoSuchRoute(RequestError):
    """No route has this path."""


class NotFound(RequestError):
    """There is nothing with this id, or it is another API key's."""


class Conflict(RequestError):
    """It contradicts what is there."""


class WrongMethod(RequestError):
    """The path exists, but not with this method."""


class Overloaded(RequestError):
    """More work waits than the server can do in time."""


class NotReady(RequestError):
    """No engine can compute right now."""


class DeadlineExceeded(RequestError):
    """The request's deadline passed."""


class EngineFailed(RequestError):
    """The engine failed on this request."""


class Row(NamedTuple):
    """The facts that all dialects and the metrics know of a class of errors."""

    status: int  # of the answer, unless the dialect has another
    reason: str  # the label of embedline_rejected_total, unless the error has its own
    retry_after: float = 0.0  # seconds after which a client should ask again, unless the error has its own; 0 = never


# fmt: off
ERRORS: dict[type[RequestError], Row] = {
    InvalidRequest:   Row(400, "invalid"),
    EmptyInput:       Row(400, "empty"),
    MalformedBody:    Row(400, "malformed"),
    NotTokenizable:   Row(400, "not_tokenizable"),
    UnsupportedTask:  Row(400, "unsupported_task"),
    Unauthorized:     Row(401, "unauthorized"),
    Forbidden:        Row(403, "forbidden"),
    ModelNotFound:    Row(404, "model"),
    NoSuchRoute:      Row(404, "route"),
    NotFound:         Row(404, "not_found"),
    WrongMethod:      Row(405, "method"),
    BodyTooSlow:      Row(408, "slow_body"),
    Conflict:         Row(409, "conflict"),
    PayloadTooLarge:  Row(413, "payload"),
    UnsupportedMedia: Row(415, "media_type"),
    Overloaded:       Row(429, "overloaded", 1.0),
    HeadTooLarge:     Row(431, "head"),
    EngineFailed:     Row(500, "engine"),
    NotReady:         Row(503, "not_ready", 2.0),
    DeadlineExceeded: Row(504, "deadline"),
}
# fmt: on

# Seconds after which a client should ask again, where they are not those of the class: of a reason, or named for who
# refuses. Computed are the expected wait (admission) and when a key's limits allow more (limits).
RETRY_AFTER = {
    "stopping": 1.0,
    "no_manager": 1.0,  # a batch manager that died is back by then
    "step_busy": 1.0,  # of a pipeline
    "unread_answers": 1.0,
    "no_result_yet": 1.0,  # of an async request
    "no_metrics": 5.0,
    "jobs_full": 10.0,  # there is no room for what is kept
}


def stopping() -> NotReady:
    """The refusal while the server drains."""
    return NotReady("the server is stopping", retry_after=RETRY_AFTER["stopping"])
