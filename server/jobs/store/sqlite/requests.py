"""The requests of a store in SQLite: each call is an operation for the writer's thread or the reader's."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from server.jobs.store.errors import StoreUnavailable
from server.jobs.store.room import size_of_end, size_of_new
from server.jobs.store.signal import Signal
from server.jobs.store.sqlite import adding, ending, outbox, queue, reading
from server.jobs.store.sqlite.writer import Writer
from server.jobs.store.store import MAX_RESULT_BYTES, NO_TURNS, StoreLimits
from server.jobs.store.turns import Turns
from server.jobs.types import (
    Claimed,
    Delivery,
    Finished,
    NewRequest,
    QueueCounts,
    RequestView,
    Result,
    WebhookStatus,
)

T = TypeVar("T")


class Reader:
    """One thread with a connection that only reads."""

    def __init__(self, connection: sqlite3.Connection, thread: Executor) -> None:
        self._connection = connection
        self._thread = thread

    async def do(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """What the operation returns, else StoreUnavailable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, operation, self._connection)
        except (RuntimeError, sqlite3.Error) as error:  # the former when the thread has ended
            raise StoreUnavailable(f"the store of jobs can't be read: {error}") from error


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
            return await self._writer.do(partial(adding.add, limits=self._limits, new=new), size_of_new(new))
        finally:  # also if the caller is canceled, for the request is kept all the same
            self._claimable.set()

    async def claim(self, limit: int, turns: Turns = NO_TURNS) -> list[Claimed]:
        self._claimable.clear()
        try:
            operation = partial(queue.claim, limits=self._limits, limit=limit, turns=turns)
            claimed, num_expired = await self._writer.do(operation)
        finally:
            self._webhook_due.set()  # some may have expired
        self._num_expired += num_expired
        return claimed

    async def renew(self, request_ids: Sequence[str]) -> None:
        return

    async def finish(self, request_id: str, outcome: Finished) -> bool:
        operation = partial(ending.finish, limits=self._limits, request_id=request_id, outcome=outcome)
        try:
            return await self._writer.do(operation, size_of_end(outcome))
        finally:
            self._webhook_due.set()

    async def release(self, request_ids: Sequence[str]) -> None:
        try:
            await self._writer.do(partial(queue.release, request_ids=request_ids))
        finally:
            self._claimable.set()

    async def view(self, owner: str, request_id: str) -> RequestView | None:
        return await self._reader.do(partial(reading.view, owner=owner, request_id=request_id))

    async def result(
        self, owner: str, request_id: str, *, offset: int = 0, count: int = MAX_RESULT_BYTES
    ) -> Result | None:
        found = partial(reading.result, owner=owner, request_id=request_id, offset=offset, count=count)
        return await self._reader.do(found)

    async def cancel(self, owner: str, request_id: str) -> bool:
        return await self._writer.do(partial(queue.cancel, limits=self._limits, owner=owner, request_id=request_id))

    async def counts(self, owner: str | None) -> QueueCounts:
        usage, quota = self._writer.usage, self._limits.quota_bytes
        operation = partial(reading.counts, owner=owner, now=self._clock(), usage=usage, quota_bytes=quota)
        return await self._reader.do(operation)

    async def expire(self) -> int:
        try:
            self._num_expired += await self._writer.do(partial(queue.expire, limits=self._limits))
        finally:
            self._webhook_due.set()
        num_expired, self._num_expired = self._num_expired, 0
        return num_expired

    async def purge(self) -> int:
        try:
            return await self._writer.do(ending.purge)
        finally:
            self._claimable.set()  # there may be room for results again

    async def holders(self) -> dict[str, int]:
        return await self._writer.do(
            lambda transaction: {owner: held.held_bytes for owner, held in transaction.usage.by_owner.items()}
        )

    async def end_ttl(self, owner: str) -> None:
        await self._writer.do(partial(ending.end_ttl, owner=owner))

    async def due_webhooks(self, limit: int, turns: Turns = NO_TURNS) -> list[Delivery]:
        self._webhook_due.clear()
        return await self._writer.do(partial(outbox.due, limits=self._limits, limit=limit, turns=turns))

    async def delivered(self, request_id: str) -> None:
        await self._settle(request_id, WebhookStatus.SUCCEEDED)

    async def delivery_failed(self, request_id: str, next_attempt_at: float | None) -> None:
        if next_attempt_at is None:
            await self._settle(request_id, WebhookStatus.FAILED)
        else:
            operation = partial(outbox.postpone, request_id=request_id, next_attempt_at=next_attempt_at)
            await self._writer.do(operation)

    async def next_due(self) -> float | None:
        return await self._reader.do(reading.next_due)

    async def claimable(self, seconds: float) -> None:
        await self._claimable.wait(seconds)

    async def webhook_due(self, seconds: float) -> None:
        await self._webhook_due.wait(seconds)

    async def _settle(self, request_id: str, status: WebhookStatus) -> None:
        operation = partial(outbox.settle, limits=self._limits, request_id=request_id, webhook_status=status)
        await self._writer.do(operation)
