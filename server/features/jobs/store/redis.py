"""The store in Redis, for several servers on one queue: its requests, its documents, and how it is opened. Every change
is one Lua script of `redis_scripts`.

Opening it refuses a server that would lose what was accepted, and warns where it might.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from server.features.jobs.store import redis_scripts as scripts
from server.features.jobs.store.quotas import (
    Totals,
    refuse_growth,
    refuse_what_finds_no_room,
    size_of_content,
    size_of_document,
    size_of_end,
    size_of_new,
    too_large_to_keep,
)
from server.features.jobs.store.store import (
    MAX_BYTES_AT_ONCE,
    MAX_RESULT_BYTES,
    NO_TURNS,
    IdempotencyConflict,
    Signal,
    StoreError,
    StoreLimits,
    StoreUnusable,
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
    Document,
    Finished,
    NewRequest,
    QueueCounts,
    RequestView,
    Result,
    Status,
    WebhookStatus,
)

VERSION = 2
_UNCOUNTED = 1  # the version that did not count by owner
PREFIX = "{embedline:jobs}:"  # braces: one slot of a cluster
LEAST_REDIS = 7  # whose XAUTOCLAIM passes over entries that were removed
LOOK_SECONDS = 1.0  # other servers' requests, and claims that nobody renewed, are looked for so often
VIEW = ("route", "priority", "status", "webhook_status", "created_at", "status_at", "errors")
CLAIMED = ("request_id", "owner", "route", "headers", "body", "priority", "retry", "created_at", "num_claims")
DELIVERY = ("request_id", "owner", "endpoint", "status", "ended_at", "errors", "num_attempts")
RESULT = ("status_code", "headers", "content_type", "body")
TIMED = ("expiring", "purging", "outbox")  # by when something is due
FIELDS = ("owner", "state", "content", "created_at", "held_bytes", "version")
logger = logging.getLogger("embedline.server")


class RedisRequests:
    """A RequestStore."""

    def __init__(self, connection: scripts.RedisConnection) -> None:
        self._connection = connection
        self._limits = connection.limits
        self._holder = secrets.token_hex(8)
        self._emptied: bytes | None = None  # how often Redis was, as far as is known
        self._num_expired = 0  # by claims, since `expire` told of them
        self._claimable = Signal()
        self._webhook_due = Signal()

    async def add(self, new: NewRequest) -> str:
        size = size_of_new(new)
        webhook_status = WebhookStatus.PENDING if new.webhook_endpoint else WebhookStatus.NO_WEBHOOK_PROVIDED
        what, *more = await self._connection.run(
            scripts.ADD,
            new_request_id(self._connection.clock()),
            new.owner,
            "k" + new.idempotency_key if new.idempotency_key is not None else "",
            content_digest(new),
            new.priority,
            size,
            repr(new.max_time_in_queue),
            scripts.limits_text(self._limits),
            self._limits.max_queued,
            *("route", new.route, "headers", json_text(new.headers), "retry", json_text(new.retry)),
            *("endpoint", new.webhook_endpoint or "", "webhook_status", webhook_status, "body", new.body),
        )
        if what == b"conflict":
            raise IdempotencyConflict("an earlier request has this idempotency key and another content")
        if what == b"full":
            refuse_what_finds_no_room(size, self._limits, new.owner, Totals(*more[:3]), Totals(*more[3:]))
        self._claimable.set()
        return str(more[0].decode())

    async def claim(self, limit: int, turns: Turns = NO_TURNS) -> list[Claimed]:
        self._claimable.clear()
        lease = int(self._limits.claim_lease * 1000)
        given = (limit, scripts.limits_text(self._limits), lease, self._holder, MAX_BYTES_AT_ONCE, NUM_PRIORITIES)
        num_expired, rows = await self._connection.run(scripts.CLAIM, *given, *_turns(turns))
        self._num_expired += num_expired
        self._webhook_due.set()  # some may have expired
        return [read_as(Claimed, **_named(CLAIMED, row)) for row in rows]

    async def renew(self, request_ids: Sequence[str]) -> None:
        await self._connection.run(scripts.RENEW, self._holder, *request_ids)

    async def finish(self, request_id: str, outcome: Finished) -> bool:
        known: tuple[str | bytes | int, ...] = ()
        if (result := outcome.result) is not None:
            known = ("status_code", result.status_code, "result_headers", json_text(result.headers))
            known += ("content_type", result.content_type, "result", result.body)
        size, limits = size_of_end(outcome), self._limits
        given = (request_id, outcome.status.value, json_text(outcome.errors), size, scripts.limits_text(limits))
        what, *more = await self._connection.run(scripts.FINISH, *given, *known)
        if what == b"too large":
            return await self.finish(request_id, too_large_to_keep(outcome))
        if what == b"full":
            growth, held, its, owner = more
            refuse_growth(growth, limits, owner.decode(), held, its)
        self._webhook_due.set()
        return bool(what == b"kept")

    async def release(self, request_ids: Sequence[str]) -> None:
        await self._connection.run(scripts.RELEASE, self._holder, *request_ids)
        self._claimable.set()

    async def view(self, owner: str, request_id: str) -> RequestView | None:
        ((known_owner, *known),) = await self._connection.read(("HMGET", self._row(request_id), "owner", *VIEW))
        if known_owner is None or known_owner.decode() != owner:
            return None
        return read_as(RequestView, request_id=request_id, **_named(VIEW, known))

    async def result(
        self, owner: str, request_id: str, *, offset: int = 0, count: int = MAX_RESULT_BYTES
    ) -> Result | None:
        known = await self._connection.run(scripts.RESULT, owner, request_id, offset + 1, offset + count)
        if not known:
            return None
        num_bytes, *fields = known
        return read_as(Result, num_bytes=num_bytes, **_named(RESULT, fields))

    async def cancel(self, owner: str, request_id: str) -> bool:
        size = size_of_end(Finished(Status.CANCELED))
        return bool(await self._connection.run(scripts.CANCEL, owner, request_id, size))

    async def counts(self, owner: str | None) -> QueueCounts:
        end = "" if owner is None else f":{owner}"
        waiting = [self._key(f"waiting:{priority}{end}") for priority in range(NUM_PRIORITIES)]
        names = [*waiting, self._key(f"running{end}"), self._key(f"outbox{end}")]
        sizes = [("ZCARD", name) for name in names]
        oldest = [("ZRANGE", name, 0, 0, "WITHSCORES") for name in waiting]
        others = (("GET", self._key("emptied")), ("HGET", self._key("usage"), "held"))
        answers = await self._connection.read(*sizes, *oldest, *others)
        self._note_emptied(answers[-2])
        *queued, in_progress, pending = answers[: len(sizes)]
        now = self._connection.clock()
        return QueueCounts(
            queued=tuple(queued),
            oldest_age=now - min([now, *_scores(answers[len(sizes) : -2])]),
            in_progress=in_progress,
            webhooks_pending=pending,
            held_bytes=int(answers[-1] or 0),
            quota_bytes=self._limits.quota_bytes,
        )

    async def expire(self) -> int:
        self._num_expired += int(await self._connection.run(scripts.EXPIRE))
        self._webhook_due.set()
        num_expired, self._num_expired = self._num_expired, 0
        return num_expired

    async def purge(self) -> int:
        num_purged = int(await self._connection.run(scripts.PURGE))
        self._claimable.set()  # there may be room for results again
        return num_purged

    async def holders(self) -> dict[str, int]:
        (usage,) = await self._connection.read(("HGETALL", self._key("usage")))
        named = ((name.decode().partition(":"), int(held)) for name, held in usage.items())
        return {owner: held for (what, colon, owner), held in named if what == "held" and colon and held}

    async def end_ttl(self, owner: str) -> None:
        purging, now, others = self._key("purging"), self._connection.clock(), 0
        while True:
            later = ("ZRANGEBYSCORE", purging, f"({now!r}", "+inf", "LIMIT", others, scripts.IDS_AT_ONCE)
            (ids,) = await self._connection.read(later)
            if not ids:
                return
            owners = await self._connection.read(*(("HGET", self._row(one.decode()), "owner") for one in ids))
            its = [one for one, whose in zip(ids, owners, strict=True) if whose == owner.encode()]
            await self._connection.read(*(("ZADD", purging, "XX", repr(now), one) for one in its))
            others += len(ids) - len(its)

    async def due_webhooks(self, limit: int, turns: Turns = NO_TURNS) -> list[Delivery]:
        self._webhook_due.clear()
        lease = repr(self._limits.delivery_lease)
        rows = await self._connection.run(scripts.DUE, limit, lease, MAX_BYTES_AT_ONCE, *_turns(turns))
        num_own = len(DELIVERY)  # the others are the result's
        return [read_as(Delivery, **_named(DELIVERY, row[:num_own]), result=_result(row[num_own:])) for row in rows]

    async def delivered(self, request_id: str) -> None:
        await self._connection.run(scripts.SETTLE, request_id, WebhookStatus.SUCCEEDED.value)

    async def delivery_failed(self, request_id: str, next_attempt_at: float | None) -> None:
        if next_attempt_at is None:
            await self._connection.run(scripts.SETTLE, request_id, WebhookStatus.FAILED.value)
        else:
            await self._connection.run(scripts.POSTPONE, request_id, repr(next_attempt_at))

    async def next_due(self) -> float | None:
        answers = await self._connection.read(*(("ZRANGE", self._key(name), 0, 0, "WITHSCORES") for name in TIMED))
        return min(_scores(answers), default=None)

    async def claimable(self, seconds: float) -> None:
        await self._claimable.wait_for(min(seconds, LOOK_SECONDS))

    async def webhook_due(self, seconds: float) -> None:
        await self._webhook_due.wait_for(min(seconds, LOOK_SECONDS))

    def _note_emptied(self, times: bytes | None) -> None:
        if self._emptied not in (None, times or b"0"):
            logger.error("--jobs-redis: Redis has been emptied: the requests, files and batches that it knew are lost")
        self._emptied = times or b"0"

    def _key(self, name: str) -> str:
        return self._connection.prefix + name

    def _row(self, request_id: str) -> str:
        return self._key(f"request:{request_id}")


def _turns(turns: Turns) -> list[str | int]:
    held, left = turns.held.items(), turns.left.items()
    return [len(held), *(part for pair in (*held, *left) for part in pair)]


def _scores(answers: list[list[bytes]]) -> list[float]:
    """The scores in replies to `ZRANGE … 0 0 WITHSCORES`, without those that found nothing."""
    return [float(answer[1]) for answer in answers if answer]


def _named(names: Iterable[str], values: Iterable[bytes | None]) -> dict[str, Any]:
    """The values by their names, those that are there; all but bodies are texts."""
    pairs = zip(names, values, strict=True)
    return {name: value if name == "body" else value.decode() for name, value in pairs if value is not None}


def _result(known: Sequence[bytes | None]) -> Result | None:
    return None if None in known else read_as(Result, **_named(RESULT, known))


class RedisDocuments:
    """A DocumentStore."""

    def __init__(self, connection: scripts.RedisConnection) -> None:
        self._connection = connection
        self._limits = connection.limits

    async def put(self, document: Document, *, needs: int | None = None) -> None:
        size = 0
        if needs != 0:
            size = size_of_content(len(document.content), needs or document.held_bytes)
        known = ("content", document.content, "created_at", repr(document.created_at))
        held_bytes = ("held_bytes", document.held_bytes)
        what, *more = await self._connection.run(scripts.PUT, *self._named(document), size, *known, *held_bytes)
        if what == b"taken":
            raise StoreError(f"there is a {document.kind} of this id already")
        if what == b"full":
            refuse_growth(size, self._limits, document.owner, *more)

    async def get(self, owner: str, kind: str, document_id: str) -> Document | None:
        found = await self._read(kind, [document_id])
        return found[0] if found and found[0].owner == owner else None

    async def newest(self, owner: str, kind: str, *, after: str | None = None, limit: int = 20) -> list[Document]:
        return await self._page(f"owned:{kind}:{owner}", kind, after, limit, newest_first=True)

    async def in_state(self, kind: str, state: str, *, after: str | None = None, limit: int = 100) -> list[Document]:
        found = await self._page(f"stated:{kind}:{state}", kind, after, limit, newest_first=False)
        return [one for one in found if one.state == state]

    async def _page(self, name: str, kind: str, after: str | None, limit: int, *, newest_first: bool) -> list[Document]:
        key, behind = self._connection.prefix + name, None
        if after is not None:
            (seq,) = await self._connection.read(("ZSCORE", key, after))
            if seq is None:
                return []
            behind = f"({float(seq):.17g}"
        bounds = (behind or "+inf", "-inf") if newest_first else (behind or "-inf", "+inf")
        command = "ZREVRANGEBYSCORE" if newest_first else "ZRANGEBYSCORE"
        (ids,) = await self._connection.read((command, key, *bounds, "LIMIT", 0, limit))
        return await self._read(kind, [one.decode() for one in ids])

    async def held(self, owner: str, kind: str) -> tuple[int, int]:
        count = total = 0
        key = f"{self._connection.prefix}owned:{kind}:{owner}"
        while True:
            (ids,) = await self._connection.read(("ZRANGE", key, count, count + scripts.IDS_AT_ONCE - 1))
            if not ids:
                return count, total
            keys = [f"{self._connection.prefix}document:{kind}:{one.decode()}" for one in ids]
            sizes = await self._connection.read(*(("HGET", one, "held_bytes") for one in keys))
            total += sum(int(size or 0) for size in sizes)
            count += len(ids)

    async def replace(self, document: Document) -> bool:
        given = (document.version, document.content, document.held_bytes)
        what, *more = await self._connection.run(scripts.REPLACE, *self._named(document), *given)
        if what == b"full":
            growth, *held = more
            refuse_growth(growth, self._limits, document.owner, *held)
        return bool(what == b"kept")

    async def delete(self, owner: str, kind: str, document_id: str) -> bool:
        return bool(await self._connection.run(scripts.DELETE, kind, document_id, owner))

    def _named(self, document: Document) -> tuple[str | int, ...]:
        size = size_of_document(document)
        names = (document.kind, document.document_id, document.owner, document.state)
        return (scripts.limits_text(self._limits), *names, size)

    async def _read(self, kind: str, ids: Sequence[str]) -> list[Document]:
        """The documents of these ids that are there."""
        if not ids:
            return []
        keys = [f"{self._connection.prefix}document:{kind}:{one}" for one in ids]
        rows = await self._connection.read(*(("HMGET", key, *FIELDS) for key in keys))
        return [_document(kind, one, *row) for one, row in zip(ids, rows, strict=True) if row[0] is not None]


def _document(kind: str, document_id: str, *row: bytes) -> Document:
    owner, state, content, created_at, held_bytes, version = row
    return Document(
        kind,
        document_id,
        owner.decode(),
        state.decode(),
        content,
        created_at=float(created_at),
        held_bytes=int(held_bytes),
        version=int(version),
    )


class RedisStore:
    """A Store. Several servers may have it open."""

    def __init__(self, connection: scripts.RedisConnection) -> None:
        self._connection = connection
        self.requests = RedisRequests(connection)
        self.documents = RedisDocuments(connection)

    async def close(self) -> None:
        await self._connection.close()


async def open_redis(
    url: str, limits: StoreLimits | None = None, clock: Callable[[], float] = time.time, folder_id: str | None = None
) -> RedisStore:
    """Open or make the store, else StoreUnusable. What other servers claimed stays theirs until their leases end.

    folder_id  of the folder with the files: all servers must share it
    """
    client = scripts.client_of(url)
    limits = limits or StoreLimits()
    connection = scripts.RedisConnection(client, limits, prefix=PREFIX, clock=clock, folder_id=folder_id or "")
    try:
        await _check_server(client)
        await _make(client)
        if folder_id is not None:
            await _check_folder(client, folder_id)
        await connection.run(scripts.COUNT)
        await connection.shorten_waits()
    except BaseException as error:
        await connection.close()
        if isinstance(error, RedisError | OSError | asyncio.TimeoutError):
            raise StoreUnusable(f"--jobs-redis: Redis can't be used: {type(error).__name__}") from None
        raise
    return RedisStore(connection)


async def _check_server(client: Redis) -> None:
    version = str((await client.info("server"))["redis_version"])
    if int(version.partition(".")[0]) < LEAST_REDIS:
        raise StoreUnusable(f"--jobs-redis: this is Redis {version}; it takes {LEAST_REDIS} or later")
    try:
        names = ("appendonly", "appendfsync", "maxmemory-policy")
        known = {name: str((await client.config_get(name))[name]) for name in names}
    except ResponseError:
        logger.warning("--jobs-redis: CONFIG GET is refused, so nobody has checked that Redis keeps what it accepted")
        return
    if known["maxmemory-policy"] != "noeviction":
        raise StoreUnusable("--jobs-redis: Redis would drop requests; set maxmemory-policy noeviction")
    if known["appendonly"] != "yes":
        raise StoreUnusable("--jobs-redis: Redis would lose requests when it ends; set appendonly yes")
    if known["appendfsync"] != "always":
        logger.warning(
            "--jobs-redis: appendfsync is %s: requests accepted just before Redis or its machine dies may be lost; "
            "set appendfsync always",
            known["appendfsync"],
        )


async def _make(client: Redis) -> None:
    """The version and the groups, where they are not there yet."""
    await client.set(f"{PREFIX}version", VERSION, nx=True)
    version = int(await client.get(f"{PREFIX}version") or VERSION)
    if version not in (_UNCOUNTED, VERSION):
        raise StoreUnusable(f"--jobs-redis: a store of version {version}; this server knows version {VERSION} alone")
    for priority in range(NUM_PRIORITIES):
        try:
            await client.xgroup_create(f"{PREFIX}queue:{priority}", "servers", id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


async def _check_folder(client: Redis, folder_id: str) -> None:
    await client.set(f"{PREFIX}folder", folder_id, nx=True)
    if (await client.get(f"{PREFIX}folder")) != folder_id.encode():
        raise StoreUnusable(
            "--jobs: the servers of this --jobs-redis keep their files in another folder; all of them must share one"
        )
