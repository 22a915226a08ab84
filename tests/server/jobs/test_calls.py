"""What clients are told of what a store, a disk or a rule of ours says to a call."""

import asyncio
import errno
from pathlib import Path

import pytest

from server.features.jobs.store.store import IdempotencyConflict, StoreError, StoreFull, StoreUnavailable
from server.features.jobs.webhook_addresses import AddressRefused
from server.requests.errors import Conflict, EngineFailed, InvalidRequest, NotFound, NotReady, RequestError
from tests.server.jobs.connected import connected


class Failing:
    """Its one call ends with this error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def fail(self, owner: str) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind", "param", "retry_after", "reason"),
    [
        (StoreFull("why"), NotReady, None, 10.0, "jobs_full"),
        (StoreUnavailable("why"), NotReady, None, 2.0, "jobs_unavailable"),
        (IdempotencyConflict(), Conflict, "idempotency-key", None, "conflict"),
        (AddressRefused("why"), InvalidRequest, "webhook_endpoint", None, "invalid"),
        (OSError(errno.ENOSPC, "why"), NotReady, None, 10.0, "jobs_full"),
        (OSError(errno.EDQUOT, "why"), NotReady, None, 10.0, "jobs_full"),
        (OSError(errno.EIO, "why", "/secret"), NotReady, None, 10.0, "jobs_unavailable"),
        (NotFound("why"), NotFound, None, None, "not_found"),
        (StoreError("/secret"), EngineFailed, None, None, "engine"),
        (KeyError("/secret"), EngineFailed, None, None, "engine"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_is_told_of_an_error(
    tmp_path: Path, error: Exception, kind: type[RequestError], param: str, retry_after: float, reason: str
) -> None:
    async def told() -> RequestError:
        async with connected(tmp_path, Failing(error)) as client:
            with pytest.raises(RequestError) as caught:
                await client.call("fail", "")
            return caught.value

    found = asyncio.run(told())
    assert (type(found), found.param, found.retry_after, found.reason) == (kind, param, retry_after, reason)
    assert "/secret" not in found.message
