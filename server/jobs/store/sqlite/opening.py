"""Opens a store in a folder, and closes it in the reverse order."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from server.jobs.store.disk import room_beside
from server.jobs.store.room import size_of_content
from server.jobs.store.sqlite.documents import SqliteDocuments
from server.jobs.store.sqlite.folder import StoreFolder
from server.jobs.store.sqlite.requests import Reader, SqliteRequests
from server.jobs.store.sqlite.schema import open_for_reading, open_for_writing
from server.jobs.store.sqlite.writer import Writer
from server.jobs.store.store import StoreLimits
from server.jobs.store.usage import Usage

FILE = "jobs.sqlite"
OPEN = "SELECT owner, total(size), count(*) FROM requests WHERE status IN ('QUEUED', 'IN_PROGRESS') GROUP BY owner"
HELD = """
SELECT owner, total(size) FROM requests GROUP BY owner UNION ALL
SELECT owner, total(document_size(length(content), held_bytes)) FROM documents GROUP BY owner
"""


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
    connection.create_function("document_size", 2, size_of_content, deterministic=True)
    usage = Usage()
    for owner, held in connection.execute(HELD):
        usage.add(owner, held=int(held))
    for owner, open_bytes, num_open in connection.execute(OPEN):
        usage.add(owner, open_bytes=int(open_bytes), num_open=num_open)
    return usage
