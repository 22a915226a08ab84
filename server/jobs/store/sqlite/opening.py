"""Opens a store in a folder, and closes it in the reverse order."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from server.jobs.store.disk import room_beside
from server.jobs.store.sqlite.documents import SqliteDocuments
from server.jobs.store.sqlite.folder import StoreFolder
from server.jobs.store.sqlite.requests import Reader, SqliteRequests
from server.jobs.store.sqlite.schema import open_for_reading, open_for_writing
from server.jobs.store.sqlite.writer import Usage, Writer
from server.jobs.store.store import OVERHEAD_BYTES, StoreLimits

FILE = "jobs.sqlite"
OPEN = "SELECT total(size), count(*) FROM requests WHERE status IN ('QUEUED', 'IN_PROGRESS')"


class SqliteStore:
    """A Store. The folder is its alone until it is closed."""

    def __init__(
        self, folder: StoreFolder, connection: sqlite3.Connection, limits: StoreLimits, clock: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._reading = open_for_reading(folder.path / FILE)
        room = partial(room_beside, folder.path / FILE)
        self._writer = Writer(connection, _usage(connection), room=room, clock=clock, result_ttl=limits.result_ttl)
        reader = Reader(self._reading, self._thread)
        self.requests = SqliteRequests(self._writer, reader, limits=limits, clock=clock)
        self.documents = SqliteDocuments(self._writer, reader, limits)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        self._reading.close()
        await self._writer.close()
        self._folder.close()


async def open_sqlite(
    path: Path, limits: StoreLimits | None = None, clock: Callable[[], float] = time.time
) -> SqliteStore:
    """Open or make the store in this folder, else StoreUnusable. What was in progress is queued again."""
    limits = limits or StoreLimits()
    folder = await asyncio.to_thread(StoreFolder, path)
    try:
        connection = await asyncio.to_thread(open_for_writing, path / FILE)
    except BaseException:
        folder.close()
        raise
    return SqliteStore(folder, connection, limits, clock)


def _usage(connection: sqlite3.Connection) -> Usage:
    (held,) = connection.execute("SELECT total(size) FROM requests").fetchone()
    (documents,) = connection.execute(
        "SELECT total(? + length(content) + held_bytes) FROM documents", (OVERHEAD_BYTES,)
    ).fetchone()
    open_bytes, num_open = connection.execute(OPEN).fetchone()
    return Usage(int(held + documents), int(open_bytes), num_open)
