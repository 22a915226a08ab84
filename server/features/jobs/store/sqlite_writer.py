"""The threads that write and read a store in SQLite. Group commit: one thread writes, and all that waits for it
goes into one transaction.

A sync of the disk costs milliseconds whatever it syncs, so the longer one takes, the more requests share the next.
A caller hears of its own operation after the commit. If a group can't be written as a whole (the disk is full, say),
each of its operations is tried alone, so that one which needs no room still succeeds.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from server.features.jobs.store.quotas import Usage
from server.features.jobs.store.store import BACKWARDS_SECONDS, StoreError, StoreFull, StoreUnavailable

MAX_GROUP = 512  # operations
MAX_WAITING = 8192  # operations
MAX_WAITING_BYTES = 256 << 20
MIN_ROOM = 16 << 20  # bytes of the disk beside the log; with less the log is kept short
_RESERVE = 4 << 20  # of it, where ends and removals find room
_WRITTEN = 3  # times its size: into the log and into the file, whose pages stay partly empty
# SQLite's errors when bytes found no place: the disk, the limit of pages, or a write that failed for another reason.
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class Transaction:
    """The connection that an operation works with, in the writer's thread."""

    connection: sqlite3.Connection
    usage: Usage
    now: float
    room: Callable[[], int]  # bytes that the disk takes before the log finds no room in the file
    _taken: int = 0

    def take(self, size: int) -> None:
        """Take room for something new, which goes into SQLite's log first and then into its file.

        StoreFull where one of them would find no room: what was accepted could not end either, and not even be removed.
        """
        if self._taken + _WRITTEN * size > self.room() - _RESERVE:
            raise StoreFull("the disk has no room for new requests")
        self._taken += _WRITTEN * size


@dataclass(slots=True, eq=False)
class _Waiting:
    operation: Callable[[Transaction], Any]
    size: int  # bytes
    future: asyncio.Future[Any]
    outcome: Any = None
    error: Exception | None = None


class Writer:
    """Owns the connection that writes. Made in the event loop whose futures it resolves."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        usage: Usage,
        *,
        room: Callable[[], int],
        clock: Callable[[], float],
        result_ttl: float,
    ) -> None:
        self.usage = usage
        self._connection = connection
        self._room = room
        self._clock = clock
        self._result_ttl = result_ttl
        self._last_now = float("inf")  # the waits of a closed server are looked at in the first transaction
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._closed = self._loop.create_future()
        threading.Thread(target=self._run, name="store-writer", daemon=True).start()

    async def do(self, operation: Callable[[Transaction, *Ts], T], *given: *Ts, size: int = 0) -> T:
        """Returns what the operation does, when it is on the disk. `size` is that of what it will write, in bytes.

        It is carried out even if the caller is canceled. Before it writes anything it may raise a StoreError.
        """
        waiting = _Waiting(lambda transaction: operation(transaction, *given), size, self._loop.create_future())
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the store of jobs is closed")
            too_many = len(self._waiting) >= MAX_WAITING
            if too_many or (self._waiting and self._waiting_bytes + size > MAX_WAITING_BYTES):
                raise StoreFull("too many writes wait for the disk")
            self._waiting.append(waiting)
            self._waiting_bytes += size
            self._changed.notify()
        result: T = await waiting.future
        return result

    async def execute(self, statement: str, **given: object) -> None:
        """Carries out one statement, which has the time as `:now`."""

        def run(transaction: Transaction) -> None:
            transaction.connection.execute(statement, {**given, "now": transaction.now})

        await self.do(run)

    async def close(self) -> None:
        """Write what waits, then end the thread and the connection."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.shield(self._closed)

    def _run(self) -> None:
        while group := self._next_group():
            self._write(group)
            self._spare_the_disk()
            self._tell(partial(_resolve, group))
        self._connection.close()
        self._tell(lambda: self._closed.set_result(None))

    def _next_group(self) -> list[_Waiting]:
        """The operations that wait now; empty when the store is closed and nothing does."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]
            self._waiting_bytes -= sum(waiting.size for waiting in group)
            return group

    def _write(self, group: list[_Waiting]) -> None:
        try:
            self._write_together(group)
        except Exception as error:
            if len(group) == 1:
                group[0].error = _for_caller(error)
                return
            for waiting in group:
                self._write([waiting])

    def _spare_the_disk(self) -> None:
        """SQLite empties its log at a thousand pages, which may be more than a disk has that is nearly full."""
        with contextlib.suppress(OSError, sqlite3.Error):
            if self._room() < MIN_ROOM:
                (usual,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
                self._connection.execute("PRAGMA busy_timeout = 0")  # what reads now is not waited for
                try:
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                finally:
                    self._connection.execute(f"PRAGMA busy_timeout = {usual}")

    def _write_together(self, group: list[_Waiting]) -> None:
        now = self._clock()
        self.usage.begin()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if now < self._last_now - BACKWARDS_SECONDS:
                _shorten_waits(self._connection, now, self._result_ttl)
            transaction = Transaction(self._connection, self.usage, now, self._room)
            for waiting in group:
                waiting.error = None
                try:
                    waiting.outcome = waiting.operation(transaction)
                except StoreError as error:
                    waiting.error = error
            self._connection.execute("COMMIT")
        except BaseException:
            self.usage.undo()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._last_now = now

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed, and nobody waits any more
            return


class Reader:
    """One thread with a connection that only reads."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA query_only = 1")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")

    async def do(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Returns what the operation does, else StoreUnavailable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, operation, self._connection)
        except (RuntimeError, sqlite3.Error) as error:  # the former when the thread has ended
            raise StoreUnavailable(f"the store of jobs can't be read: {error}") from error

    async def rows(self, query: str, given: Any = ()) -> list[Any]:
        """The rows that a query finds."""
        return await self.do(lambda connection: connection.execute(query, given).fetchall())

    async def close(self) -> None:
        """Answer what was asked for, then end the thread and the connection."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        self._connection.close()


def _resolve(group: list[_Waiting]) -> None:
    for waiting in group:
        if waiting.future.done():  # canceled
            continue
        if waiting.error is not None:
            waiting.future.set_exception(waiting.error)
        else:
            waiting.future.set_result(waiting.outcome)


def _for_caller(error: Exception) -> Exception:
    if isinstance(error, OSError):
        return StoreFull(f"the disk took no more: {error.strerror}")
    if isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorcode"):
        if error.sqlite_errorcode & 0xFF in NO_ROOM:
            return StoreFull(f"the disk took no more: {error}")
        return StoreUnavailable(f"the store of jobs failed: {error}")
    return error


def _shorten_waits(connection: sqlite3.Connection, now: float, result_ttl: float) -> None:
    """Shortens waits to at most their whole length from now: after the clock went back, nothing hangs."""
    given = {"now": now, "ttl": result_ttl}
    connection.execute(
        "UPDATE requests SET expires_at = :now + max_time_in_queue "
        "WHERE status IN ('QUEUED', 'IN_PROGRESS') AND expires_at > :now + max_time_in_queue",
        given,
    )
    connection.execute("UPDATE requests SET purge_at = :now + :ttl WHERE purge_at > :now + :ttl", given)
    connection.execute(
        "UPDATE requests SET next_attempt_at = :now + attempt_wait "
        "WHERE next_attempt_at IS NOT NULL AND next_attempt_at > :now + attempt_wait",
        given,
    )
