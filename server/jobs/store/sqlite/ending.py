"""How a request ends and is forgotten."""

from dataclasses import dataclass

from server.jobs.store.room import refuse_growth, size_of_end, too_large_to_keep
from server.jobs.store.sqlite.writer import Transaction
from server.jobs.store.store import StoreLimits
from server.jobs.store.texts import errors_text, headers_text
from server.jobs.types import Finished, Result, Status, WebhookStatus

MAX_PURGED_AT_ONCE = 1000
FREE_PAGES_AT_ONCE = 1000  # handed back to the file system after a purge; 4 KiB each

ENDING = "SELECT seq, size, webhook_endpoint, owner, status FROM requests"
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
    owner: str
    status: str


def finish(transaction: Transaction, limits: StoreLimits, request_id: str, outcome: Finished) -> bool:
    row = transaction.connection.execute(
        f"{ENDING} WHERE request_id = ? AND status IN ('QUEUED', 'IN_PROGRESS')", (request_id,)
    ).fetchone()
    if row is None:
        return False
    ending = Ending(*row)
    if outcome.result is not None:
        outcome = _kept_if_there_is_room(transaction, limits, ending, outcome)
    end(transaction, limits, ending, outcome)
    return True


def _kept_if_there_is_room(
    transaction: Transaction, limits: StoreLimits, ending: Ending, outcome: Finished
) -> Finished:
    """Raises StoreFull where there is none now."""
    owner, size, usage = ending.owner, size_of_end(outcome), transaction.usage
    if size > limits.quota_of(owner):
        return too_large_to_keep(outcome)
    usage.learn(owner, size, limits)
    if size > ending.size:
        refuse_growth(size - ending.size, limits, owner, usage.total.held_bytes, usage.by_owner[owner].held_bytes)
    return outcome


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
    running = -1 if ending.status == Status.IN_PROGRESS else 0
    held = size - ending.size
    transaction.usage.add(ending.owner, held=held, open_bytes=-ending.size, num_open=-1, running=running)


def _webhook_status(endpoint: str | None, status: Status) -> WebhookStatus:
    if endpoint is None:
        return WebhookStatus.NO_WEBHOOK_PROVIDED
    return WebhookStatus.CANCELED if status == Status.CANCELED else WebhookStatus.PENDING


def _keep(transaction: Transaction, seq: int, result: Result) -> None:
    transaction.connection.execute(
        "INSERT INTO results (seq, status_code, headers, content_type, body) VALUES (?, ?, ?, ?, ?)",
        (seq, result.status_code, headers_text(result.headers), result.content_type, result.body),
    )


def end_ttl(transaction: Transaction, owner: str) -> None:
    """Of all ended requests of an owner."""
    transaction.connection.execute(
        "UPDATE requests SET purge_at = ? WHERE owner = ? AND purge_at > ?", (transaction.now, owner, transaction.now)
    )


def purge(transaction: Transaction) -> int:
    connection = transaction.connection
    rows = connection.execute(
        "SELECT seq, size, owner FROM requests WHERE purge_at <= ? LIMIT ?", (transaction.now, MAX_PURGED_AT_ONCE)
    ).fetchall()
    seqs = [(seq,) for seq, _, _ in rows]
    connection.executemany("DELETE FROM results WHERE seq = ?", seqs)
    connection.executemany("DELETE FROM requests WHERE seq = ?", seqs)
    for _, size, owner in rows:
        transaction.usage.add(owner, held=-size)
    if rows:
        connection.execute(f"PRAGMA incremental_vacuum({FREE_PAGES_AT_ONCE})").fetchall()
    return len(rows)
