"""What the jobs process refuses, as errors of requests."""

import contextlib
from collections.abc import Iterator

from server.jobs.messages import Reason, Refused
from server.requests.errors import Conflict, EngineFailed, InvalidRequest, NotFound, NotReady, RequestError

_ERRORS: dict[Reason, type[RequestError]] = {
    Reason.FULL: NotReady,
    Reason.UNAVAILABLE: NotReady,
    Reason.CONFLICT: Conflict,
    Reason.NOT_FOUND: NotFound,
    Reason.INVALID: InvalidRequest,
    Reason.FAILED: EngineFailed,
}


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """Around a call of the jobs process. Raises RequestError in place of Refused."""
    try:
        yield
    except Refused as refused:
        reason = f"jobs_{refused.reason}" if _ERRORS[refused.reason] is NotReady else ""
        raise _ERRORS[refused.reason](
            refused.message, param=refused.param, retry_after=refused.retry_after, reason=reason
        ) from None
