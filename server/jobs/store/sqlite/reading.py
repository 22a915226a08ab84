"""What is read without the writer: of committed rows, by a connection of its own."""

import sqlite3

from server.jobs.store.texts import errors_from, headers_from
from server.jobs.store.usage import Usage
from server.jobs.types import NUM_PRIORITIES, QueueCounts, RequestView, Result, Status, WebhookStatus

VIEW = """
SELECT request_id, route, priority, status, webhook_status, created_at, status_at, errors
FROM requests WHERE request_id = ? AND owner = ?
"""
RESULT = "SELECT status_code, headers, content_type, body FROM results WHERE seq = ?"
RESULT_HEAD = "SELECT seq, status_code, headers, content_type FROM results WHERE seq = ?"
OPEN = """
SELECT status, priority, count(*), min(created_at) FROM requests
WHERE status IN ('QUEUED', 'IN_PROGRESS') AND (:owner IS NULL OR owner = :owner) GROUP BY status, priority
"""
OPEN_OF_ONE = OPEN.replace("(:owner IS NULL OR owner = :owner)", "owner = :owner")
PENDING = "SELECT count(*) FROM requests WHERE next_attempt_at IS NOT NULL AND (:owner IS NULL OR owner = :owner)"
DUE = (
    "SELECT expires_at FROM requests WHERE status = 'QUEUED' ORDER BY expires_at LIMIT 1",
    "SELECT purge_at FROM requests WHERE purge_at IS NOT NULL ORDER BY purge_at LIMIT 1",
    "SELECT next_attempt_at FROM requests WHERE next_attempt_at IS NOT NULL ORDER BY next_attempt_at LIMIT 1",
)


def view(connection: sqlite3.Connection, owner: str, request_id: str) -> RequestView | None:
    row = connection.execute(VIEW, (request_id, owner)).fetchone()
    if row is None:
        return None
    known_id, route, priority, status, webhook_status, created_at, status_at, errors = row
    return RequestView(
        known_id,
        route,
        priority,
        status=Status(status),
        webhook_status=WebhookStatus(webhook_status),
        created_at=created_at,
        status_at=status_at,
        errors=errors_from(errors),
    )


def result(connection: sqlite3.Connection, owner: str, request_id: str, *, offset: int, count: int) -> Result | None:
    known = connection.execute(
        "SELECT seq FROM requests WHERE request_id = ? AND owner = ?", (request_id, owner)
    ).fetchone()
    row = connection.execute(RESULT_HEAD, known).fetchone() if known is not None else None
    if row is None:
        return None
    seq, status_code, headers, content_type = row
    with connection.blobopen("results", "body", seq, readonly=True) as blob:
        blob.seek(min(offset, len(blob)))
        return Result(status_code, headers_from(headers), blob.read(count), content_type, len(blob))


def result_of(connection: sqlite3.Connection, seq: int) -> Result | None:
    row = connection.execute(RESULT, (seq,)).fetchone()
    if row is None:
        return None
    status_code, headers, content_type, body = row
    return Result(status_code, headers_from(headers), body, content_type)


def counts(
    connection: sqlite3.Connection, owner: str | None, *, now: float, usage: Usage, quota_bytes: int
) -> QueueCounts:
    queued, in_progress, oldest = [0] * NUM_PRIORITIES, 0, now
    query = OPEN if owner is None else OPEN_OF_ONE
    for status, priority, count, created_at in connection.execute(query, {"owner": owner}):
        if status == Status.QUEUED:
            queued[priority] = count
            oldest = min(oldest, created_at)
        else:
            in_progress += count
    (pending,) = connection.execute(PENDING, {"owner": owner}).fetchone()
    return QueueCounts(
        queued=tuple(queued),
        oldest_age=now - oldest,
        in_progress=in_progress,
        webhooks_pending=pending,
        held_bytes=usage.total.held_bytes,
        quota_bytes=quota_bytes,
    )


def next_due(connection: sqlite3.Connection) -> float | None:
    rows = (connection.execute(query).fetchone() for query in DUE)
    return min((row[0] for row in rows if row is not None), default=None)
