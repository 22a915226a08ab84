"""The requests of a store in Redis."""

import dataclasses
import logging
import secrets
from collections.abc import Sequence

from server.jobs.store.errors import IdempotencyConflict
from server.jobs.store.redis import request_scripts as scripts
from server.jobs.store.redis.connection import IDS_AT_ONCE, Connection, limits_text
from server.jobs.store.room import (
    refuse_growth,
    refuse_what_finds_no_room,
    size_of_end,
    size_of_new,
    too_large_to_keep,
)
from server.jobs.store.signal import Signal
from server.jobs.store.store import MAX_RESULT_BYTES, NO_TURNS
from server.jobs.store.texts import (
    content_digest,
    errors_from,
    errors_text,
    headers_from,
    headers_text,
    new_request_id,
    retry_from,
    retry_text,
)
from server.jobs.store.turns import Turns
from server.jobs.store.usage import Held
from server.jobs.types import (
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

MAX_BYTES_AT_ONCE = 64 << 20  # of one claim's bodies or one answer of `due_webhooks`
LOOK_SECONDS = 1.0  # other servers' requests, and claims that nobody renewed, are looked for so often
VIEW = ("route", "priority", "status", "webhook_status", "created_at", "status_at", "errors")
RESULT = ("status_code", "result_headers", "content_type", "result")
TIMED = ("expiring", "purging", "outbox")

logger = logging.getLogger("embedline.server")


class RedisRequests:
    """A RequestStore."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._limits = connection.limits
        self._holder = secrets.token_hex(8)
        self._emptied: bytes | None = None  # how often Redis was, as far as is known
        self._num_expired = 0  # by claims, since `expire` told of them
        self._claimable = Signal()
        self._webhook_due = Signal()

    async def add(self, new: NewRequest) -> str:
        size = size_of_new(new)
        known: dict[str, str | bytes] = {
            "route": new.route,
            "headers": headers_text(new.headers),
            "retry": retry_text(new.retry),
            "endpoint": new.webhook_endpoint or "",
            "webhook_status": WebhookStatus.PENDING if new.webhook_endpoint else WebhookStatus.NO_WEBHOOK_PROVIDED,
            "body": new.body,
        }
        what, *more = await self._connection.run(
            scripts.ADD,
            new_request_id(self._connection.clock()),
            new.owner,
            "k" + new.idempotency_key if new.idempotency_key is not None else "",
            content_digest(new),
            new.priority,
            size,
            repr(new.max_time_in_queue),
            limits_text(self._limits),
            self._limits.max_queued,
            *(part for pair in known.items() for part in pair),
        )
        if what == b"conflict":
            raise IdempotencyConflict("an earlier request has this idempotency key and another content")
        if what == b"full":
            refuse_what_finds_no_room(size, self._limits, new.owner, Held(*more[:3]), Held(*more[3:]))
        self._claimable.set()
        return str(more[0].decode())

    async def claim(self, limit: int, turns: Turns = NO_TURNS) -> list[Claimed]:
        self._claimable.clear()
        lease = int(self._limits.claim_lease * 1000)
        given = (limit, limits_text(self._limits), lease, self._holder, MAX_BYTES_AT_ONCE, NUM_PRIORITIES)
        num_expired, rows = await self._connection.run(scripts.CLAIM, *given, *_turns(turns))
        self._num_expired += num_expired
        self._webhook_due.set()  # some may have expired
        return [_claimed(*row) for row in rows]

    async def renew(self, request_ids: Sequence[str]) -> None:
        await self._connection.run(scripts.RENEW, self._holder, *request_ids)

    async def finish(self, request_id: str, outcome: Finished) -> bool:
        known: tuple[str | bytes | int, ...] = ()
        if (result := outcome.result) is not None:
            values: tuple[str | bytes | int, ...] = (
                result.status_code,
                headers_text(result.headers),
                result.content_type,
                result.body,
            )
            known = tuple(part for pair in zip(RESULT, values, strict=True) for part in pair)
        size, limits = size_of_end(outcome), self._limits
        given = (request_id, outcome.status.value, errors_text(outcome.errors), size, limits_text(limits))
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
        route, priority, status, webhook_status, created_at, status_at, errors = known
        return RequestView(
            request_id,
            route.decode(),
            int(priority),
            status=Status(status.decode()),
            webhook_status=WebhookStatus(webhook_status.decode()),
            created_at=float(created_at),
            status_at=float(status_at),
            errors=errors_from(errors),
        )

    async def result(
        self, owner: str, request_id: str, *, offset: int = 0, count: int = MAX_RESULT_BYTES
    ) -> Result | None:
        known = await self._connection.run(scripts.RESULT, owner, request_id, offset + 1, offset + count)
        if not known:
            return None
        num_bytes, *fields = known
        found = _result(*fields)
        return None if found is None else dataclasses.replace(found, num_bytes=num_bytes)

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
            later = ("ZRANGEBYSCORE", purging, f"({now!r}", "+inf", "LIMIT", others, IDS_AT_ONCE)
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
        return [_delivery(*row) for row in rows]

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
        await self._claimable.wait(min(seconds, LOOK_SECONDS))

    async def webhook_due(self, seconds: float) -> None:
        await self._webhook_due.wait(min(seconds, LOOK_SECONDS))

    def _note_emptied(self, times: bytes | None) -> None:
        if self._emptied not in (None, times or b"0"):
            logger.error("--jobs-redis: Redis has been emptied: the requests, files and batches that it knew are lost")
        self._emptied = times or b"0"

    def _key(self, name: str) -> str:
        return self._connection.prefix + name

    def _row(self, request_id: str) -> str:
        return self._key(f"request:{request_id}")


def _turns(turns: Turns) -> list[str | int]:
    held, room = turns.held.items(), turns.room.items()
    return [len(held), *(part for pair in (*held, *room) for part in pair)]


def _scores(answers: list[list[bytes]]) -> list[float]:
    """Of `ZRANGE … 0 0 WITHSCORES`, without those that found nothing."""
    return [float(answer[1]) for answer in answers if answer]


def _claimed(*row: bytes) -> Claimed:
    request_id, owner, route, headers, body, priority, retry, created_at, num_claims = row
    return Claimed(
        request_id.decode(),
        owner.decode(),
        route.decode(),
        headers=headers_from(headers),
        body=body,
        priority=int(priority),
        retry=retry_from(retry),
        created_at=float(created_at),
        num_claims=int(num_claims),
    )


def _delivery(*row: bytes) -> Delivery:
    request_id, owner, endpoint, status, ended_at, errors, num_attempts, *result = row
    return Delivery(
        request_id.decode(),
        owner.decode(),
        endpoint.decode(),
        status=Status(status.decode()),
        ended_at=float(ended_at),
        result=_result(*result),
        errors=errors_from(errors),
        num_attempts=int(num_attempts),
    )


def _result(*known: bytes | None) -> Result | None:
    status_code, headers, content_type, body = known
    if status_code is None or headers is None or content_type is None or body is None:
        return None
    return Result(int(status_code), headers_from(headers), body, content_type.decode())
