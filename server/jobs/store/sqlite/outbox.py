"""Webhooks that are due, in the rows of the requests that they tell of."""

from itertools import islice

from server.jobs.store.sqlite.reading import result_of
from server.jobs.store.sqlite.writer import Transaction
from server.jobs.store.store import StoreLimits
from server.jobs.store.texts import errors_from
from server.jobs.store.turns import Turns
from server.jobs.types import Delivery, Status, WebhookStatus

MAX_DELIVERY_BYTES = 64 << 20  # of the results in one answer of `due`, so that what is held in memory is bounded
# As those of the queue.
OWNERS = """
WITH RECURSIVE owners(owner) AS (
    SELECT min(owner) FROM requests INDEXED BY due WHERE next_attempt_at IS NOT NULL UNION ALL
    SELECT (SELECT min(owner) FROM requests INDEXED BY due WHERE next_attempt_at IS NOT NULL AND owner > owners.owner)
    FROM owners WHERE owner IS NOT NULL
)
SELECT owner, (SELECT next_attempt_at FROM requests INDEXED BY due
    WHERE next_attempt_at IS NOT NULL AND owner = owners.owner ORDER BY next_attempt_at LIMIT 1)
FROM owners WHERE owner IS NOT NULL
"""
FIRST_OF_ONE = """
SELECT seq, size FROM requests INDEXED BY due WHERE owner = ? AND next_attempt_at <= ? ORDER BY next_attempt_at LIMIT 1
"""
# Its status_at is when it ended, for a webhook that is pending changes no status.
BEGIN_ATTEMPT = """
UPDATE requests SET num_attempts = num_attempts + 1, next_attempt_at = ?, attempt_wait = ? WHERE seq = ?
RETURNING request_id, owner, webhook_endpoint, status, status_at, errors, num_attempts
"""
SETTLE = """
UPDATE requests SET webhook_status = ?, next_attempt_at = NULL, purge_at = max(status_at + ?, ?),
    status = CASE WHEN status = 'SUCCEEDED' AND ? THEN 'WEBHOOK_FAILED' ELSE status END
WHERE request_id = ? AND next_attempt_at IS NOT NULL
"""


def due(transaction: Transaction, limits: StoreLimits, limit: int, turns: Turns) -> list[Delivery]:
    ask = transaction.connection.execute
    deliveries: list[Delivery] = []
    total = 0
    rows = turns.given(ask(OWNERS).fetchall(), lambda owner: ask(FIRST_OF_ONE, (owner, transaction.now)).fetchone())
    for seq, size in islice(rows, limit):
        total += size
        if deliveries and total > MAX_DELIVERY_BYTES:
            break
        deliveries.append(_begin_attempt(transaction, limits.delivery_lease, seq))
    return deliveries


def _begin_attempt(transaction: Transaction, lease: float, seq: int) -> Delivery:
    given = (transaction.now + lease, lease, seq)
    (row,) = transaction.connection.execute(BEGIN_ATTEMPT, given).fetchall()
    request_id, owner, endpoint, status, ended_at, errors, num_attempts = row
    return Delivery(
        request_id,
        owner,
        endpoint,
        status=Status(status),
        ended_at=ended_at,
        result=result_of(transaction.connection, seq),
        errors=errors_from(errors),
        num_attempts=num_attempts,
    )


def settle(transaction: Transaction, limits: StoreLimits, request_id: str, webhook_status: WebhookStatus) -> None:
    """No more attempts; the TTL of the request counts from its end."""
    failed = webhook_status == WebhookStatus.FAILED
    now = transaction.now
    transaction.connection.execute(SETTLE, (webhook_status.value, limits.result_ttl, now, failed, request_id))


def postpone(transaction: Transaction, request_id: str, next_attempt_at: float) -> None:
    transaction.connection.execute(
        "UPDATE requests SET next_attempt_at = ?, attempt_wait = ? "
        "WHERE request_id = ? AND next_attempt_at IS NOT NULL",
        (next_attempt_at, max(0.0, next_attempt_at - transaction.now), request_id),
    )
