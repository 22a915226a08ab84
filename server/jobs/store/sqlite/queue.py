"""Requests that wait: claimed in their order, put back, or ended because they waited too long."""

from collections.abc import Sequence
from itertools import islice

from server.jobs.store.room import EXPIRED_MESSAGE
from server.jobs.store.sqlite.ending import ENDING, Ending, end
from server.jobs.store.sqlite.writer import Transaction
from server.jobs.store.store import StoreLimits
from server.jobs.store.texts import headers_from, retry_from
from server.jobs.store.turns import Turns
from server.jobs.types import Claimed, Finished, JobError, Status

MAX_CLAIM_BYTES = 64 << 20  # of one claim's bodies, so that what is held in memory is bounded
MAX_ENDED_AT_ONCE = 1000
EXPIRY = Finished(Status.EXPIRED, errors=(JobError("EXPIRED", EXPIRED_MESSAGE),))

# From one owner to the next by the index, so that it takes as long as there are owners, not requests.
OWNERS = """
WITH RECURSIVE owners(owner) AS (
    SELECT min(owner) FROM requests INDEXED BY turns WHERE status = 'QUEUED' UNION ALL
    SELECT (SELECT min(owner) FROM requests INDEXED BY turns WHERE status = 'QUEUED' AND owner > owners.owner)
    FROM owners WHERE owner IS NOT NULL
)
SELECT owner, (SELECT seq FROM requests INDEXED BY turns
    WHERE status = 'QUEUED' AND owner = owners.owner ORDER BY priority, seq LIMIT 1)
FROM owners WHERE owner IS NOT NULL
"""
FIRST_OF_ONE = """
SELECT seq, size FROM requests INDEXED BY turns
WHERE status = 'QUEUED' AND owner = ? AND expires_at > ? ORDER BY priority, seq LIMIT 1
"""
CLAIM = """
UPDATE requests SET status = 'IN_PROGRESS', status_at = ?, num_claims = num_claims + 1 WHERE seq = ?
RETURNING request_id, owner, route, headers, priority, retry, created_at, num_claims
"""

RELEASE = """
UPDATE requests SET status = 'QUEUED', status_at = ? WHERE request_id = ? AND status = 'IN_PROGRESS' RETURNING owner
"""


def claim(transaction: Transaction, limits: StoreLimits, limit: int, turns: Turns) -> tuple[list[Claimed], int]:
    """None of an owner whose results might find no room; and how many have expired."""
    num_expired = expire(transaction, limits)
    ask, usage = transaction.connection.execute, transaction.usage

    def first(owner: str) -> tuple[int, int] | None:
        if not usage.has_room_for_result(owner, limits):
            return None
        found: tuple[int, int] | None = ask(FIRST_OF_ONE, (owner, transaction.now)).fetchone()
        return found

    claimed: list[Claimed] = []
    total = 0
    rows = turns.given(ask(OWNERS).fetchall(), first)
    for seq, size in islice(rows, limit):
        total += size
        if claimed and total > MAX_CLAIM_BYTES:
            break
        claimed.append(_claim_one(transaction, seq))
    return claimed, num_expired


def _claim_one(transaction: Transaction, seq: int) -> Claimed:
    connection = transaction.connection
    (row,) = connection.execute(CLAIM, (transaction.now, seq)).fetchall()
    request_id, owner, route, headers, priority, retry, created_at, num_claims = row
    transaction.usage.add(owner, running=1)
    (body,) = connection.execute("SELECT body FROM bodies WHERE seq = ?", (seq,)).fetchone()
    return Claimed(
        request_id,
        owner,
        route,
        headers=headers_from(headers),
        body=body,
        priority=priority,
        retry=retry_from(retry),
        created_at=created_at,
        num_claims=num_claims,
    )


def release(transaction: Transaction, request_ids: Sequence[str]) -> None:
    for request_id in request_ids:
        released = transaction.connection.execute(RELEASE, (transaction.now, request_id)).fetchall()
        for (owner,) in released:
            transaction.usage.add(owner, running=-1)


def expire(transaction: Transaction, limits: StoreLimits) -> int:
    rows = transaction.connection.execute(
        f"{ENDING} WHERE status = 'QUEUED' AND expires_at <= ? LIMIT ?", (transaction.now, MAX_ENDED_AT_ONCE)
    ).fetchall()
    for row in rows:
        end(transaction, limits, Ending(*row), EXPIRY)
    return len(rows)


def cancel(transaction: Transaction, limits: StoreLimits, owner: str, request_id: str) -> bool:
    row = transaction.connection.execute(
        f"{ENDING} WHERE request_id = ? AND owner = ? AND status = 'QUEUED'", (request_id, owner)
    ).fetchone()
    if row is None:
        return False
    end(transaction, limits, Ending(*row), Finished(Status.CANCELED))
    return True
