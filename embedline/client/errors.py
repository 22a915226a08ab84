"""The errors that the client raises.

    EmbedlineError
    ├── RequestFailed         a request was given up: the message names it and says what was done
    │   └── DeadlineExceeded  ... because the time was over (a TimeoutError too)
    ├── Cancelled             the call's CancellationToken was cancelled
    └── NoThread              the system starts no thread for a call of AsyncClient (a RuntimeError too)

Wrong arguments are ValueError and TypeError, before anything is sent.
"""

from collections.abc import Sequence
from typing import Any


class EmbedlineError(Exception):
    """Base of what ends a call early.

    `partial` is the answer of the call with what had come until then. Its `done` (bool [n]) says which inputs have
    their rows, scores or values. None where the call returns its results one by one (`iter_embed`).
    """

    partial: Any = None


class RequestFailed(EmbedlineError):
    """One request failed, and trying again did not help or would not have."""

    def __init__(
        self, message: str, *, request: str, status: int | None = None, start: int, stop: int, attempts: Sequence[str]
    ) -> None:
        super().__init__(message)
        self.request = request  # method, address and inputs, in words
        self.status = status  # of the last answer; None = there was none, or it was wrong
        self.start = start  # of the inputs of the failed request: inputs[start:stop]
        self.stop = stop
        self.attempts = tuple(attempts)  # what was done, in words


class DeadlineExceeded(RequestFailed, TimeoutError):
    """`timeout_s` or `total_timeout_s` was over."""


class Cancelled(EmbedlineError):
    """The call was cancelled."""


class NoThread(EmbedlineError, RuntimeError):
    """The system starts no thread, and the client has none: nothing was sent. The call may be made again."""
