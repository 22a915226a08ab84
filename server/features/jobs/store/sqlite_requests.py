"""The requests of a store in SQLite: each call is an operation for the writer's thread, or for the reader's.

Operations stand behind the class in the order of a request's life: it is added, claimed, ended, read, and its webhook
is sent. What the reader sees are committed rows, by a connection of its own.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from server.features.jobs.store.quotas import (
    EXPIRED_MESSAGE,
    Held,
    Usage,
    refuse_growth,
    refuse_what_finds_no_room,
    size_of_end,
    size_of_new,
    too_large_to_keep,
)
from server.features.jobs.store.sqlite_writer import Reader, Transaction, Writer
from server.features.jobs.store.store import (
    MAX_RESULT_BYTES,
    NO_TURNS,
    IdempotencyConflict,
    Signal,
    StoreLimits,
    Turns,
    content_digest,
    errors_from,
    errors_text,
    headers_from,
    headers_text,
    new_request_id,
    retry_from,
    retry_text,
)
from server.features.jobs.types import (
    NUM_PRIORITIES,
    Claimed,
    Delivery,
    Finished,
    JobError,
    NewRequest,
    QueueCounts,
    RequestView,
    Result,
    Status,
    WebhookStatus,
)

MAX_CLAIM_BYTES = 64 << 20  # of one claim's bodies, so that what is held in memory is bounded
MAX_DELIVERY_BYTES = 64 << 20  # of the results in one answer of `due`, so that what is held in memory is bounded
MAX_ENDED_AT_ONCE = 1000
MAX_PURGED_AT_ONCE = 1000
FREE_PAGES_AT_ONCE = 1000  # handed back to the file system after a purge; 4 KiB each
EXPIRY = Finished(Status.EXPIRED, errors=(JobError("EXPIRED", EXPIRED_MESSAGE),))
INSERT = """
INSERT INTO requests (request_id, owner, route, headers, priority, retry, webhook_endpoint, idempotency_key, digest,
    status, webhook_status, size, created_at, status_at, max_time_in_queue, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
# From one owner to the next by the index, so that it takes as long as there are owners, not requests.
QUEUED_OWNERS = """
WITH RECURSIVE owners(owner) AS (
    SELECT min(owner) FROM requests INDEXED BY turns WHERE status = 'QUEUED' UNION ALL
    SELECT (SELECT min(owner) FROM requests INDEXED BY turns WHERE status = 'QUEUED' AND owner > owners.owner)
    FROM owners WHERE owner IS NOT NULL
)
SELECT owner, (SELECT seq FROM requests INDEXED BY turns
    WHERE status = 'QUEUED' AND owner = owners.owner ORDER BY priority, seq LIMIT 1)
FROM owners WHERE owner IS NOT NULL
"""
FIRST_QUEUED = """
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
ENDING = "SELECT seq, size, webhook_endpoint, owner, status FROM requests"
END = """
UPDATE requests SET status = ?, webhook_status = ?, errors = ?, size = ?, status_at = ?,
    purge_at = ?, next_attempt_at = ?, attempt_wait = 0
WHERE seq = ?
"""
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
# As those of the queue.
DUE_OWNERS = """
WITH RECURSIVE owners(owner) AS (
    SELECT min(owner) FROM requests INDEXED BY due WHERE next_attempt_at IS NOT NULL UNION ALL
    SELECT (SELECT min(owner) FROM requests INDEXED BY due WHERE next_attempt_at IS NOT NULL AND owner > owners.owner)
    FROM owners WHERE owner IS NOT NULL
)
SELECT owner, (SELECT next_attempt_at FROM requests INDEXED BY due
    WHERE next_attempt_at IS NOT NULL AND owner = owners.owner ORDER BY next_attempt_at LIMIT 1)
FROM owners WHERE owner IS NOT NULL
"""
FIRST_DUE = """
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


class SqliteRequests:
    """A RequestStore."""

    def __init__(self, writer: Writer, reader: Reader, *, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._limits = limits
        self._clock = clock
        self._num_expired = 0  # by claims, since `expire` told of them
        self._claimable = Signal()
        self._webhook_due = Signal()

    async def add(self, new: NewRequest) -> str:
        try:
            return await self._writer.do(partial(_add, limits=self._limits, new=new), size_of_new(new))
        finally:  # also if the caller is canceled, for the request is kept all the same
            self._claimable.set()

    async def claim(self, limit: int, turns: Turns = NO_TURNS) -> list[Claimed]:
        self._claimable.clear()
        try:
            operation = partial(_claim, limits=self._limits, limit=limit, turns=turns)
            claimed, num_expired = await self._writer.do(operation)
        finally:
            self._webhook_due.set()  # some may have expired
        self._num_expired += num_expired
        return claimed

    async def renew(self, request_ids: Sequence[str]) -> None:
        return

    async def finish(self, request_id: str, outcome: Finished) -> bool:
        operation = partial(_finish, limits=self._limits, request_id=request_id, outcome=outcome)
        try:
            return await self._writer.do(operation, size_of_end(outcome))
        finally:
            self._webhook_due.set()

    async def release(self, request_ids: Sequence[str]) -> None:
        try:
            await self._writer.do(partial(_release, request_ids=request_ids))
        finally:
            self._claimable.set()

    async def view(self, owner: str, request_id: str) -> RequestView | None:
        return await self._reader.do(partial(_view, owner=owner, request_id=request_id))

    async def result(
        self, owner: str, request_id: str, *, offset: int = 0, count: int = MAX_RESULT_BYTES
    ) -> Result | None:
        found = partial(_result, owner=owner, request_id=request_id, offset=offset, count=count)
        return await self._reader.do(found)

    async def cancel(self, owner: str, request_id: str) -> bool:
        return await self._writer.do(partial(_cancel, limits=self._limits, owner=owner, request_id=request_id))

    async def counts(self, owner: str | None) -> QueueCounts:
        usage, quota = self._writer.usage, self._limits.quota_bytes
        operation = partial(_counts, owner=owner, now=self._clock(), usage=usage, quota_bytes=quota)
        return await self._reader.do(operation)

    async def expire(self) -> int:
        try:
            self._num_expired += await self._writer.do(partial(_expire, limits=self._limits))
        finally:
            self._webhook_due.set()
        num_expired, self._num_expired = self._num_expired, 0
        return num_expired

    async def purge(self) -> int:
        try:
            return await self._writer.do(_purge)
        finally:
            self._claimable.set()  # there may be room for results again

    async def holders(self) -> dict[str, int]:
        return await self._writer.do(
            lambda transaction: {owner: held.held_bytes for owner, held in transaction.usage.by_owner.items()}
        )

    async def end_ttl(self, owner: str) -> None:
        await self._writer.do(partial(_end_ttl, owner=owner))

    async def due_webhooks(self, limit: int, turns: Turns = NO_TURNS) -> list[Delivery]:
        self._webhook_due.clear()
        return await self._writer.do(partial(_due, limits=self._limits, limit=limit, turns=turns))

    async def delivered(self, request_id: str) -> None:
        await self._settle(request_id, WebhookStatus.SUCCEEDED)

    async def delivery_failed(self, request_id: str, next_attempt_at: float | None) -> None:
        if next_attempt_at is None:
            await self._settle(request_id, WebhookStatus.FAILED)
        else:
            operation = partial(_postpone, request_id=request_id, next_attempt_at=next_attempt_at)
            await self._writer.do(operation)

    async def next_due(self) -> float | None:
        return await self._reader.do(_next_due)

    async def claimable(self, seconds: float) -> None:
        await self._claimable.wait(seconds)

    async def webhook_due(self, seconds: float) -> None:
        await self._webhook_due.wait(seconds)

    async def _settle(self, request_id: str, status: WebhookStatus) -> None:
        operation = partial(_settle, limits=self._limits, request_id=request_id, webhook_status=status)
        await self._writer.do(operation)


def _add(transaction: Transaction, limits: StoreLimits, new: NewRequest) -> str:
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


def _claim(transaction: Transaction, limits: StoreLimits, limit: int, turns: Turns) -> tuple[list[Claimed], int]:
    """None of an owner whose results might find no room; and how many have expired."""
    num_expired = _expire(transaction, limits)
    ask, usage = transaction.connection.execute, transaction.usage

    def first(owner: str) -> tuple[int, int] | None:
        if not usage.has_room_for_result(owner, limits):
            return None
        found: tuple[int, int] | None = ask(FIRST_QUEUED, (owner, transaction.now)).fetchone()
        return found

    claimed: list[Claimed] = []
    total = 0
    rows = turns.given(ask(QUEUED_OWNERS).fetchall(), first)
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


def _release(transaction: Transaction, request_ids: Sequence[str]) -> None:
    for request_id in request_ids:
        released = transaction.connection.execute(RELEASE, (transaction.now, request_id)).fetchall()
        for (owner,) in released:
            transaction.usage.add(owner, running=-1)


def _expire(transaction: Transaction, limits: StoreLimits) -> int:
    rows = transaction.connection.execute(
        f"{ENDING} WHERE status = 'QUEUED' AND expires_at <= ? LIMIT ?", (transaction.now, MAX_ENDED_AT_ONCE)
    ).fetchall()
    for row in rows:
        _end(transaction, limits, _Ending(*row), EXPIRY)
    return len(rows)


def _cancel(transaction: Transaction, limits: StoreLimits, owner: str, request_id: str) -> bool:
    row = transaction.connection.execute(
        f"{ENDING} WHERE request_id = ? AND owner = ? AND status = 'QUEUED'", (request_id, owner)
    ).fetchone()
    if row is None:
        return False
    _end(transaction, limits, _Ending(*row), Finished(Status.CANCELED))
    return True


@dataclass(frozen=True, slots=True)
class _Ending:
    """A row that is about to end, and its size until then."""

    seq: int
    size: int
    webhook_endpoint: str | None
    owner: str
    status: str


def _finish(transaction: Transaction, limits: StoreLimits, request_id: str, outcome: Finished) -> bool:
    row = transaction.connection.execute(
        f"{ENDING} WHERE request_id = ? AND status IN ('QUEUED', 'IN_PROGRESS')", (request_id,)
    ).fetchone()
    if row is None:
        return False
    ending = _Ending(*row)
    if outcome.result is not None:
        outcome = _kept_if_there_is_room(transaction, limits, ending, outcome)
    _end(transaction, limits, ending, outcome)
    return True


def _kept_if_there_is_room(
    transaction: Transaction, limits: StoreLimits, ending: _Ending, outcome: Finished
) -> Finished:
    """Raises StoreFull where there is none now."""
    owner, size, usage = ending.owner, size_of_end(outcome), transaction.usage
    if size > limits.quota_of(owner):
        return too_large_to_keep(outcome)
    usage.learn(owner, size, limits)
    if size > ending.size:
        refuse_growth(size - ending.size, limits, owner, usage.total.held_bytes, usage.by_owner[owner].held_bytes)
    return outcome


def _end(transaction: Transaction, limits: StoreLimits, ending: _Ending, outcome: Finished) -> None:
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


def _end_ttl(transaction: Transaction, owner: str) -> None:
    """Of all ended requests of an owner."""
    transaction.connection.execute(
        "UPDATE requests SET purge_at = ? WHERE owner = ? AND purge_at > ?", (transaction.now, owner, transaction.now)
    )


def _purge(transaction: Transaction) -> int:
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


def _view(connection: sqlite3.Connection, owner: str, request_id: str) -> RequestView | None:
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


def _result(connection: sqlite3.Connection, owner: str, request_id: str, *, offset: int, count: int) -> Result | None:
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


def _result_of(connection: sqlite3.Connection, seq: int) -> Result | None:
    row = connection.execute(RESULT, (seq,)).fetchone()
    if row is None:
        return None
    status_code, headers, content_type, body = row
    return Result(status_code, headers_from(headers), body, content_type)


def _counts(
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


def _next_due(connection: sqlite3.Connection) -> float | None:
    rows = (connection.execute(query).fetchone() for query in DUE)
    return min((row[0] for row in rows if row is not None), default=None)


def _due(transaction: Transaction, limits: StoreLimits, limit: int, turns: Turns) -> list[Delivery]:
    ask = transaction.connection.execute
    deliveries: list[Delivery] = []
    total = 0
    rows = turns.given(ask(DUE_OWNERS).fetchall(), lambda owner: ask(FIRST_DUE, (owner, transaction.now)).fetchone())
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
        result=_result_of(transaction.connection, seq),
        errors=errors_from(errors),
        num_attempts=num_attempts,
    )


def _settle(transaction: Transaction, limits: StoreLimits, request_id: str, webhook_status: WebhookStatus) -> None:
    """No more attempts; the TTL of the request counts from its end."""
    failed = webhook_status == WebhookStatus.FAILED
    now = transaction.now
    transaction.connection.execute(SETTLE, (webhook_status.value, limits.result_ttl, now, failed, request_id))


def _postpone(transaction: Transaction, request_id: str, next_attempt_at: float) -> None:
    transaction.connection.execute(
        "UPDATE requests SET next_attempt_at = ?, attempt_wait = ? "
        "WHERE request_id = ? AND next_attempt_at IS NOT NULL",
        (next_attempt_at, max(0.0, next_attempt_at - transaction.now), request_id),
    )
