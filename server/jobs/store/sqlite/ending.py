"""How a request ends and is forgotten."""

from dataclasses import dataclass

from server.jobs.store.room import size_of_end
from server.jobs.store.sqlite.writer import Transaction
from server.jobs.store.store import StoreLimits
from server.jobs.store.texts import errors_text, headers_text
from server.jobs.types import Finished, Result, Status, WebhookStatus

MAX_PURGED_AT_ONCE = 1000
FREE_PAGES_AT_ONCE = 1000  # handed back to the file system after a purge; 4 KiB each

END = """
UPDATE requests SET status = ?, webhook_status = ?, errors = ?, size = ?, status_at = ?,
    purge_at = ?, next_attempt_at = ?, attempt_wait = 0
WHERE seq = ?
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """A row that is about to end, and its size until then."""

    seq: int
    size: int
    webhook_endpoint: str | None


def finish(transaction: Transaction, limits: StoreLimits, request_id: str, outcome: Finished) -> bool:
    row = transaction.connection.execute(
        "SELECT seq, size, webhook_endpoint FROM requests WHERE request_id = ? AND status IN ('QUEUED', 'IN_PROGRESS')",
        (request_id,),
    ).fetchone()
    if row is None:
        return False
    end(transaction, limits, Ending(*row), outcome)
    return True


def end(transaction: Transaction, limits: StoreLimits, ending: Ending, outcome: Finished) -> None:
    """A webhook is due at once; without one, or canceled, the request's TTL begins."""
    now, connection, size = transaction.now, transaction.connection, size_of_end(outcome)
    webhook_status = _webhook_status(ending.webhook_endpoint, outcome.status)
    is_due = webhook_status == WebhookStatus.PENDING
    times = (None, now) if is_due else (now + limits.result_ttl, None)
    changed = (outcome.status.value, webhook_status.value, errors_text(outcome.errors), size, now, *times)
    connection.execute(END, (*changed, ending.seq))
    connection.execute("DELETE FROM bodies WHERE seq = ?", (ending.seq,))
    if outcome.result is not None:
        _keep(transaction, ending.seq, outcome.result)
    usage = transaction.usage
    usage.held_bytes += size - ending.size
    usage.open_bytes -= ending.size
    usage.num_open -= 1


def _webhook_status(endpoint: str | None, status: Status) -> WebhookStatus:
    if endpoint is None:
        return WebhookStatus.NO_WEBHOOK_PROVIDED
    return WebhookStatus.CANCELED if status == Status.CANCELED else WebhookStatus.PENDING


def _keep(transaction: Transaction, seq: int, result: Result) -> None:
    transaction.connection.execute(
        "INSERT INTO results (seq, status_code, headers, content_type, body) VALUES (?, ?, ?, ?, ?)",
        (seq, result.status_code, headers_text(result.headers), result.content_type, result.body),
    )


def purge(transaction: Transaction) -> int:
    connection = transaction.connection
    rows = connection.execute(
        "SELECT seq, size FROM requests WHERE purge_at <= ? LIMIT ?", (transaction.now, MAX_PURGED_AT_ONCE)
    ).fetchall()
    seqs = [(seq,) for seq, _ in rows]
    connection.executemany("DELETE FROM results WHERE seq = ?", seqs)
    connection.executemany("DELETE FROM requests WHERE seq = ?", seqs)
    transaction.usage.held_bytes -= sum(size for _, size in rows)
    if rows:
        connection.execute(f"PRAGMA incremental_vacuum({FREE_PAGES_AT_ONCE})").fetchall()
    return len(rows)
