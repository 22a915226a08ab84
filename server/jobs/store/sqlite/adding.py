"""How a request comes into the tables."""

from server.jobs.store.errors import IdempotencyConflict
from server.jobs.store.room import refuse_what_finds_no_room, size_of_new
from server.jobs.store.sqlite.writer import Transaction
from server.jobs.store.store import StoreLimits
from server.jobs.store.texts import content_digest, headers_text, new_request_id, retry_text
from server.jobs.store.usage import Held
from server.jobs.types import NewRequest, Status, WebhookStatus

INSERT = """
INSERT INTO requests (request_id, owner, route, headers, priority, retry, webhook_endpoint, idempotency_key, digest,
    status, webhook_status, size, created_at, status_at, max_time_in_queue, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def add(transaction: Transaction, limits: StoreLimits, new: NewRequest) -> str:
    """The id of a new request, or of the one that was added before with this key."""
    if new.idempotency_key is not None and (earlier := _earlier(transaction, new)):
        return earlier
    usage, now, size = transaction.usage, transaction.now, size_of_new(new)
    refuse_what_finds_no_room(size, limits, new.owner, usage.total, usage.by_owner.get(new.owner, Held()))
    transaction.take(size)
    request_id = new_request_id(now)
    webhook_status = WebhookStatus.PENDING if new.webhook_endpoint else WebhookStatus.NO_WEBHOOK_PROVIDED
    row = (
        request_id,
        new.owner,
        new.route,
        headers_text(new.headers),
        new.priority,
        retry_text(new.retry),
        new.webhook_endpoint,
        new.idempotency_key,
        content_digest(new) if new.idempotency_key is not None else None,
        Status.QUEUED.value,
        webhook_status.value,
        size,
        now,
        now,
        new.max_time_in_queue,
        now + new.max_time_in_queue,
    )
    seq = transaction.connection.execute(INSERT, row).lastrowid
    transaction.connection.execute("INSERT INTO bodies (seq, body) VALUES (?, ?)", (seq, new.body))
    usage.add(new.owner, held=size, open_bytes=size, num_open=1)
    return request_id


def _earlier(transaction: Transaction, new: NewRequest) -> str | None:
    row = transaction.connection.execute(
        "SELECT request_id, digest FROM requests WHERE owner = ? AND idempotency_key = ?",
        (new.owner, new.idempotency_key),
    ).fetchone()
    if row is None:
        return None
    request_id, digest = row
    if digest != content_digest(new):
        raise IdempotencyConflict("an earlier request has this idempotency key and another content")
    return str(request_id)
