"""The requests of a store in SQLite. What the reader sees are committed rows, by a connection of its own."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from server.features.jobs.store.quotas import (
    EXPIRY,
    Totals,
    refuse_growth,
    refuse_what_finds_no_room,
    size_of_end,
    size_of_new,
    too_large_to_keep,
)
from server.features.jobs.store.sqlite_writer import Reader, Transaction, Writer
from server.features.jobs.store.store import (
    MAX_BYTES_AT_ONCE,
    MAX_RESULT_BYTES,
    NO_TURNS,
    IdempotencyConflict,
    Signal,
    StoreLimits,
    Turns,
    content_digest,
    json_text,
    new_request_id,
    read_as,
)
from server.features.jobs.types import (
    NUM_PRIORITIES,
    Claimed,
    Delivery,
    Finished,
    NewRequest,
    QueueCounts,
    RequestView,
    Result,
    Status,
    WebhookStatus,
)

MAX_ENDED_AT_ONCE = 1000
MAX_PURGED_AT_ONCE = 1000
FREE_PAGES_AT_ONCE = 1000  # handed back to the file system after a purge; 4 KiB each
INSERT = """
INSERT INTO requests (request_id, owner, route, headers, priority, retry, webhook_endpoint, idempotency_key, digest,
    status, webhook_status, size, created_at, status_at, max_time_in_queue, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
OWNERS = """
WITH RECURSIVE owners(owner) AS (
    SELECT min(owner) FROM requests INDEXED BY {index} WHERE {waits} UNION ALL
    SELECT (SELECT min(owner) FROM requests INDEXED BY {index} WHERE {waits} AND owner > owners.owner)
    FROM owners WHERE owner IS NOT NULL
)
SELECT owner, (SELECT {first} FROM requests INDEXED BY {index}
    WHERE {waits} AND owner = owners.owner ORDER BY {order} LIMIT 1)
FROM owners WHERE owner IS NOT NULL
"""  # from one owner to the next by the index, so that it takes as long as there are owners, not requests
QUEUED_OWNERS = OWNERS.format(index="turns", waits="status = 'QUEUED'", first="seq", order="priority, seq")
DUE_OWNERS = OWNERS.format(
    index="due", waits="next_attempt_at IS NOT NULL", first="next_attempt_at", order="next_attempt_at"
)
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
RESULT_HEAD = """
SELECT results.seq, status_code, results.headers AS headers, content_type FROM requests JOIN results USING (seq)
WHERE request_id = ? AND owner = ?
"""
KEEP = "INSERT INTO results (seq, status_code, headers, content_type, body) VALUES (?, ?, ?, ?, ?)"
OPEN = """
SELECT status, priority, count(*), min(created_at) FROM requests
WHERE status IN ('QUEUED', 'IN_PROGRESS') AND (:owner IS NULL OR owner = :owner) GROUP BY status, priority
"""
OPEN_OF_ONE = OPEN.replace("(:owner IS NULL OR owner = :owner)", "owner = :owner")
PENDING = "SELECT count(*) FROM requests WHERE next_attempt_at IS NOT NULL AND (:owner IS NULL OR owner = :owner)"
# Each by its index; min of one column reads one row of it.
NEXT_DUE = """
SELECT min(due) FROM (SELECT min(expires_at) AS due FROM requests WHERE status = 'QUEUED' UNION ALL
    SELECT min(purge_at) FROM requests WHERE purge_at IS NOT NULL UNION ALL
    SELECT min(next_attempt_at) FROM requests WHERE next_attempt_at IS NOT NULL)
"""
END_TTL = "UPDATE requests SET purge_at = :now WHERE owner = :owner AND purge_at > :now"
FIRST_DUE = """
SELECT seq, size FROM requests INDEXED BY due WHERE owner = ? AND next_attempt_at <= ? ORDER BY next_attempt_at LIMIT 1
"""
# Its status_at is when it ended, for a webhook that is pending changes no status.
BEGIN_ATTEMPT = """
UPDATE requests SET num_attempts = num_attempts + 1, next_attempt_at = ?, attempt_wait = ? WHERE seq = ?
RETURNING request_id, owner, webhook_endpoint AS endpoint, status, status_at AS ended_at, errors, num_attempts
"""
# The TTL of the request counts from its end.
SETTLE = """
UPDATE requests SET webhook_status = :status, next_attempt_at = NULL, purge_at = max(status_at + :ttl, :now),
    status = CASE WHEN status = 'SUCCEEDED' AND :status = 'FAILED' THEN 'WEBHOOK_FAILED' ELSE status END
WHERE request_id = :request_id AND next_attempt_at IS NOT NULL
"""
POSTPONE = """
UPDATE requests SET next_attempt_at = :at, attempt_wait = max(0.0, :at - :now)
WHERE request_id = :request_id AND next_attempt_at IS NOT NULL
"""


class SqliteRequests:
    """A RequestStore. What writes goes to the writer's thread, as a transaction; what reads, to the reader's."""

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
            return await self._writer.do(self._add, new, size=size_of_new(new))
        finally:  # also if the caller is canceled, for the request is kept all the same
            self._claimable.set()

    def _add(self, transaction: Transaction, new: NewRequest) -> str:
        """The id of a new request, or of the one that was added before with this key."""
        if new.idempotency_key is not None and (earlier := _earlier(transaction, new)):
            return earlier
        usage, now, size = transaction.usage, transaction.now, size_of_new(new)
        refuse_what_finds_no_room(size, self._limits, new.owner, usage.total, usage.by_owner.get(new.owner, Totals()))
        transaction.take(size)
        request_id = new_request_id(now)
        webhook_status = WebhookStatus.PENDING if new.webhook_endpoint else WebhookStatus.NO_WEBHOOK_PROVIDED
        row = (
            request_id,
            new.owner,
            new.route,
            json_text(new.headers),
            new.priority,
            json_text(new.retry),
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

    async def claim(self, limit: int, turns: Turns = NO_TURNS) -> list[Claimed]:
        self._claimable.clear()
        try:
            claimed, num_expired = await self._writer.do(self._claim, limit, turns)
        finally:
            self._webhook_due.set()  # some may have expired
        self._num_expired += num_expired
        return claimed

    def _claim(self, transaction: Transaction, limit: int, turns: Turns) -> tuple[list[Claimed], int]:
        """The requests claimed, none of an owner whose results might find no room; and how many have expired."""
        num_expired = self._expire(transaction)
        ask, usage = transaction.connection.execute, transaction.usage

        def first(owner: str) -> tuple[int, int] | None:
            if not usage.has_room_for_result(owner, self._limits):
                return None
            found: tuple[int, int] | None = ask(FIRST_QUEUED, (owner, transaction.now)).fetchone()
            return found

        seqs = _bounded(turns.given(ask(QUEUED_OWNERS).fetchall(), first), limit)
        return [_claim_one(transaction, seq) for seq in seqs], num_expired

    async def renew(self, request_ids: Sequence[str]) -> None:
        return

    async def finish(self, request_id: str, outcome: Finished) -> bool:
        try:
            return await self._writer.do(self._finish, request_id, outcome, size=size_of_end(outcome))
        finally:
            self._webhook_due.set()

    def _finish(self, transaction: Transaction, request_id: str, outcome: Finished) -> bool:
        row = transaction.connection.execute(
            f"{ENDING} WHERE request_id = ? AND status IN ('QUEUED', 'IN_PROGRESS')", (request_id,)
        ).fetchone()
        if row is None:
            return False
        if outcome.result is not None:
            outcome = self._kept_if_there_is_room(transaction, row, outcome)
        self._end(transaction, row, outcome)
        return True

    def _kept_if_there_is_room(self, transaction: Transaction, ending: sqlite3.Row, outcome: Finished) -> Finished:
        """The outcome, as failed where it can never have room. Raises StoreFull where there is none now."""
        owner, was, size = ending["owner"], ending["size"], size_of_end(outcome)
        usage, limits = transaction.usage, self._limits
        if size > limits.quota_of(owner):
            return too_large_to_keep(outcome)
        usage.learn(owner, size, limits)
        if size > was:
            refuse_growth(size - was, limits, owner, usage.total.held_bytes, usage.by_owner[owner].held_bytes)
        return outcome

    def _end(self, transaction: Transaction, ending: sqlite3.Row, outcome: Finished) -> None:
        """A webhook is due at once; without one, or canceled, the request's TTL begins."""
        now, connection, size = transaction.now, transaction.connection, size_of_end(outcome)
        webhook_status = _webhook_status(ending["webhook_endpoint"], outcome.status)
        is_due = webhook_status == WebhookStatus.PENDING
        times = (None, now) if is_due else (now + self._limits.result_ttl, None)
        changed = (outcome.status.value, webhook_status.value, json_text(outcome.errors), size, now, *times)
        connection.execute(END, (*changed, ending["seq"]))
        connection.execute("DELETE FROM bodies WHERE seq = ?", (ending["seq"],))
        if (result := outcome.result) is not None:
            kept = (ending["seq"], result.status_code, json_text(result.headers), result.content_type, result.body)
            connection.execute(KEEP, kept)
        running, was = -1 if ending["status"] == Status.IN_PROGRESS else 0, ending["size"]
        transaction.usage.add(ending["owner"], held=size - was, open_bytes=-was, num_open=-1, running=running)

    async def release(self, request_ids: Sequence[str]) -> None:
        def release(transaction: Transaction) -> None:
            for request_id in request_ids:
                for (owner,) in transaction.connection.execute(RELEASE, (transaction.now, request_id)).fetchall():
                    transaction.usage.add(owner, running=-1)

        try:
            await self._writer.do(release)
        finally:
            self._claimable.set()

    async def view(self, owner: str, request_id: str) -> RequestView | None:
        rows = await self._reader.rows(VIEW, (request_id, owner))
        return read_as(RequestView, **rows[0]) if rows else None

    async def result(
        self, owner: str, request_id: str, *, offset: int = 0, count: int = MAX_RESULT_BYTES
    ) -> Result | None:
        def read(connection: sqlite3.Connection) -> Result | None:
            row = connection.execute(RESULT_HEAD, (request_id, owner)).fetchone()
            if row is None:
                return None
            with connection.blobopen("results", "body", row["seq"], readonly=True) as blob:
                blob.seek(min(offset, len(blob)))
                return read_as(Result, **row, body=blob.read(count), num_bytes=len(blob))

        return await self._reader.do(read)

    async def cancel(self, owner: str, request_id: str) -> bool:
        def cancel(transaction: Transaction) -> bool:
            row = transaction.connection.execute(
                f"{ENDING} WHERE request_id = ? AND owner = ? AND status = 'QUEUED'", (request_id, owner)
            ).fetchone()
            if row is not None:
                self._end(transaction, row, Finished(Status.CANCELED))
            return row is not None

        return await self._writer.do(cancel)

    async def counts(self, owner: str | None) -> QueueCounts:
        query, given = OPEN if owner is None else OPEN_OF_ONE, {"owner": owner}
        usage, now = self._writer.usage, self._clock()
        rows, (pending,) = await self._reader.do(
            lambda reading: (reading.execute(query, given).fetchall(), reading.execute(PENDING, given).fetchone())
        )
        queued, in_progress, oldest = [0] * NUM_PRIORITIES, 0, now
        for status, priority, count, created_at in rows:
            if status == Status.QUEUED:
                queued[priority] = count
                oldest = min(oldest, created_at)
            else:
                in_progress += count
        return QueueCounts(
            queued=tuple(queued),
            oldest_age=now - oldest,
            in_progress=in_progress,
            webhooks_pending=pending,
            held_bytes=usage.total.held_bytes,
            quota_bytes=self._limits.quota_bytes,
        )

    async def expire(self) -> int:
        try:
            self._num_expired += await self._writer.do(self._expire)
        finally:
            self._webhook_due.set()
        num_expired, self._num_expired = self._num_expired, 0
        return num_expired

    def _expire(self, transaction: Transaction) -> int:
        rows = transaction.connection.execute(
            f"{ENDING} WHERE status = 'QUEUED' AND expires_at <= ? LIMIT ?", (transaction.now, MAX_ENDED_AT_ONCE)
        ).fetchall()
        for row in rows:
            self._end(transaction, row, EXPIRY)
        return len(rows)

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
        await self._writer.execute(END_TTL, owner=owner)

    async def due_webhooks(self, limit: int, turns: Turns = NO_TURNS) -> list[Delivery]:
        self._webhook_due.clear()
        return await self._writer.do(self._due, limit, turns)

    def _due(self, transaction: Transaction, limit: int, turns: Turns) -> list[Delivery]:
        ask, now, lease = transaction.connection.execute, transaction.now, self._limits.delivery_lease
        rows = turns.given(ask(DUE_OWNERS).fetchall(), lambda owner: ask(FIRST_DUE, (owner, now)).fetchone())
        return [_begin_attempt(transaction, lease, seq) for seq in _bounded(rows, limit)]

    async def delivered(self, request_id: str) -> None:
        await self._settle(request_id, WebhookStatus.SUCCEEDED)

    async def delivery_failed(self, request_id: str, next_attempt_at: float | None) -> None:
        if next_attempt_at is None:
            await self._settle(request_id, WebhookStatus.FAILED)
        else:
            await self._writer.execute(POSTPONE, request_id=request_id, at=next_attempt_at)

    async def _settle(self, request_id: str, status: WebhookStatus) -> None:
        ttl = self._limits.result_ttl
        await self._writer.execute(SETTLE, request_id=request_id, status=status.value, ttl=ttl)

    async def next_due(self) -> float | None:
        ((due,),) = await self._reader.rows(NEXT_DUE)
        return None if due is None else float(due)

    async def claimable(self, seconds: float) -> None:
        await self._claimable.wait_for(seconds)

    async def webhook_due(self, seconds: float) -> None:
        await self._webhook_due.wait_for(seconds)


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


def _bounded(rows: Iterable[tuple[int, int]], limit: int) -> Iterator[int]:
    """The first of these, by their sizes: as many as the limit, and of more than one only what may be in memory."""
    total = 0
    for number, (seq, size) in enumerate(islice(rows, limit)):
        total += size
        if number and total > MAX_BYTES_AT_ONCE:
            return
        yield seq


def _claim_one(transaction: Transaction, seq: int) -> Claimed:
    ask = transaction.connection.execute
    (row,) = ask(CLAIM, (transaction.now, seq)).fetchall()
    # Not with RETURNING, which would put a large one into a file in the system's temporary folder.
    (body,) = ask("SELECT body FROM bodies WHERE seq = ?", (seq,)).fetchone()
    transaction.usage.add(row["owner"], running=1)
    return read_as(Claimed, **row, body=body)


def _webhook_status(endpoint: str | None, status: Status) -> WebhookStatus:
    if endpoint is None:
        return WebhookStatus.NO_WEBHOOK_PROVIDED
    return WebhookStatus.CANCELED if status == Status.CANCELED else WebhookStatus.PENDING


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


def _begin_attempt(transaction: Transaction, lease: float, seq: int) -> Delivery:
    ask = transaction.connection.execute
    (row,) = ask(BEGIN_ATTEMPT, (transaction.now + lease, lease, seq)).fetchall()
    result = ask(RESULT, (seq,)).fetchone()
    return read_as(Delivery, **row, result=None if result is None else read_as(Result, **result))
