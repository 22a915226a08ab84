"""The store in a folder of this machine: SQLite in WAL mode, every commit synced. The folder is for its owner alone,
and for one process at a time.

It is opened here, and closed in the reverse order; what the file keeps of a closed server is put in order. Damage is
found before SQLite opens the file, for SQLite drops what is behind a bad byte of its log without a word:
https://www.sqlite.org/walformat.html

Its documents stand here too; its requests are `sqlite_requests`.
"""

import asyncio
import logging
import os
import sqlite3
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from server.features.jobs.disk import Folder
from server.features.jobs.store.quotas import Totals, Usage, refuse_growth, size_of_content, size_of_document
from server.features.jobs.store.sqlite_requests import SqliteRequests
from server.features.jobs.store.sqlite_writer import Reader, Transaction, Writer
from server.features.jobs.store.store import StoreError, StoreLimits, StoreUnusable
from server.features.jobs.types import Document
from wire.files import sync_folder

VERSION = 1
APPLICATION_ID = 0x656D626A  # "embj"
FILE = "jobs.sqlite"
MAX_LOG_BYTES = 64 << 20  # what stays of the write-ahead log between checkpoints
OPEN_BY_OWNER = (
    "SELECT owner, total(size), count(*) FROM requests WHERE status IN ('QUEUED', 'IN_PROGRESS') GROUP BY owner"
)
HELD_BY_OWNER = """
SELECT owner, total(size) FROM requests GROUP BY owner UNION ALL
SELECT owner, total(document_size(length(content), held_bytes)) FROM documents GROUP BY owner
"""
COLUMNS = "kind, document_id, owner, state, content, created_at, held_bytes, version"
FIND = f"SELECT {COLUMNS} FROM documents WHERE kind = ? AND document_id = ?"
INSERT = f"INSERT INTO documents ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, 1)"
REPLACE = """
UPDATE documents SET state = ?, content = ?, held_bytes = ?, version = version + 1 WHERE kind = ? AND document_id = ?
"""
LIST = f"""
SELECT {COLUMNS} FROM documents WHERE owner = :owner AND kind = :kind AND (:after IS NULL OR seq <
    (SELECT seq FROM documents WHERE owner = :owner AND kind = :kind AND document_id = :after))
ORDER BY seq DESC LIMIT :limit
"""
HELD = "SELECT count(*), CAST(total(held_bytes) AS INTEGER) FROM documents WHERE owner = ? AND kind = ?"
IN_STATE = f"""
SELECT {COLUMNS} FROM documents WHERE kind = :kind AND state = :state AND (:after IS NULL OR seq >
    (SELECT seq FROM documents WHERE kind = :kind AND document_id = :after))
ORDER BY seq LIMIT :limit
"""
# Bodies and results have tables of their own, so that a change of status rewrites neither.
# `seq` is the order of arrival; clocks do not count.
TABLES = """
CREATE TABLE requests (
    seq INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    route TEXT NOT NULL,
    headers TEXT NOT NULL,
    priority INTEGER NOT NULL,
    retry TEXT NOT NULL,
    webhook_endpoint TEXT,
    idempotency_key TEXT,
    digest BLOB,
    status TEXT NOT NULL,
    webhook_status TEXT NOT NULL,
    errors TEXT NOT NULL DEFAULT '[]',
    size INTEGER NOT NULL,
    num_claims INTEGER NOT NULL DEFAULT 0,
    num_attempts INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    status_at REAL NOT NULL,
    max_time_in_queue REAL NOT NULL,
    expires_at REAL NOT NULL,
    purge_at REAL,
    next_attempt_at REAL,
    attempt_wait REAL
) STRICT;
CREATE TABLE bodies (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE results (
    seq INTEGER PRIMARY KEY,
    status_code INTEGER NOT NULL,
    headers TEXT NOT NULL,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX keyed ON requests (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX expiring ON requests (expires_at) WHERE status = 'QUEUED';
CREATE INDEX open ON requests (owner, status, priority, created_at) WHERE status IN ('QUEUED', 'IN_PROGRESS');
CREATE INDEX purged ON requests (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX outbox ON requests (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE TABLE documents (
    seq INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    document_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    state TEXT NOT NULL,
    content BLOB NOT NULL,
    created_at REAL NOT NULL,
    held_bytes INTEGER NOT NULL,
    version INTEGER NOT NULL,
    UNIQUE (kind, document_id)
) STRICT;
CREATE INDEX owned ON documents (owner, kind, seq);
CREATE INDEX stated ON documents (kind, state, seq);
"""
# Made in every store, as those of earlier servers have them not; the queue of those was one for all owners.
INDEXES = (
    "DROP INDEX IF EXISTS queued",
    "CREATE INDEX IF NOT EXISTS turns ON requests (owner, priority, seq) WHERE status = 'QUEUED'",
    "CREATE INDEX IF NOT EXISTS due ON requests (owner, next_attempt_at) WHERE next_attempt_at IS NOT NULL",
)
_LOG_HEAD, _FRAME_HEAD = 32, 24
_MAGIC = 0x377F0682  # the last bit says whether checksums are of big-endian words
_INDEX_HEAD = 48  # of each of its two copies in the -shm file
_AT_A_TIME = 4096  # frames that are looked at together
_MANY_BYTES = 1 << 30  # of a file whose every page is looked at before it is used
_Words = np.ndarray[Any, np.dtype[np.uint32]]
logger = logging.getLogger("embedline.server")


class SqliteDocuments:
    """A DocumentStore."""

    def __init__(self, writer: Writer, reader: Reader, limits: StoreLimits) -> None:
        self._writer = writer
        self._reader = reader
        self._limits = limits

    async def put(self, document: Document, *, needs: int | None = None) -> None:
        await self._writer.do(self._put, document, needs, size=len(document.content))

    def _put(self, transaction: Transaction, document: Document, needs: int | None) -> None:
        if _find(transaction, document.kind, document.document_id) is not None:
            raise StoreError(f"there is a {document.kind} of this id already")
        if needs != 0:
            size = size_of_content(len(document.content), needs or document.held_bytes)
            self._refuse_growth(transaction, document.owner, size)
        known = (document.kind, document.document_id, document.owner, document.state, document.content)
        transaction.connection.execute(INSERT, (*known, document.created_at, document.held_bytes))
        transaction.usage.add(document.owner, held=size_of_document(document))

    async def get(self, owner: str, kind: str, document_id: str) -> Document | None:
        rows = await self._reader.rows(f"{FIND} AND owner = ?", (kind, document_id, owner))
        return Document(*rows[0]) if rows else None

    async def newest(self, owner: str, kind: str, *, after: str | None = None, limit: int = 20) -> list[Document]:
        given = {"owner": owner, "kind": kind, "after": after, "limit": limit}
        return [Document(*row) for row in await self._reader.rows(LIST, given)]

    async def in_state(self, kind: str, state: str, *, after: str | None = None, limit: int = 100) -> list[Document]:
        given = {"kind": kind, "state": state, "after": after, "limit": limit}
        return [Document(*row) for row in await self._reader.rows(IN_STATE, given)]

    async def held(self, owner: str, kind: str) -> tuple[int, int]:
        ((count, total),) = await self._reader.rows(HELD, (owner, kind))
        return count, total

    async def replace(self, document: Document) -> bool:
        return await self._writer.do(self._replace, document, size=len(document.content))

    def _replace(self, transaction: Transaction, document: Document) -> bool:
        kept = _find(transaction, document.kind, document.document_id)
        if kept is None or kept.version != document.version or kept.owner != document.owner:
            return False
        growth = size_of_document(document) - size_of_document(kept)
        if document.held_bytes > kept.held_bytes:
            self._refuse_growth(transaction, document.owner, growth)
        changed = (document.state, document.content, document.held_bytes)
        transaction.connection.execute(REPLACE, (*changed, document.kind, document.document_id))
        transaction.usage.add(document.owner, held=growth)
        return True

    async def delete(self, owner: str, kind: str, document_id: str) -> bool:
        def delete(transaction: Transaction) -> bool:
            kept = _find(transaction, kind, document_id)
            if kept is None or kept.owner != owner:
                return False
            given = (kind, document_id)
            transaction.connection.execute("DELETE FROM documents WHERE kind = ? AND document_id = ?", given)
            transaction.usage.add(owner, held=-size_of_document(kept))
            return True

        return await self._writer.do(delete)

    def _refuse_growth(self, transaction: Transaction, owner: str, size: int) -> None:
        total, its = transaction.usage.total, transaction.usage.by_owner.get(owner, Totals())
        refuse_growth(size, self._limits, owner, total.held_bytes, its.held_bytes)


def _find(transaction: Transaction, kind: str, document_id: str) -> Document | None:
    row = transaction.connection.execute(FIND, (kind, document_id)).fetchone()
    return None if row is None else Document(*row)


class SqliteStore:
    """A Store. The folder is its alone until it is closed."""

    def __init__(
        self, folder: Folder, connection: sqlite3.Connection, limits: StoreLimits, clock: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._reader = Reader(folder.path / FILE)
        room = partial(room_beside, folder.path / FILE)
        self._writer = Writer(connection, _usage(connection), room=room, clock=clock, result_ttl=limits.result_ttl)
        self.requests = SqliteRequests(self._writer, self._reader, limits=limits, clock=clock)
        self.documents = SqliteDocuments(self._writer, self._reader, limits)

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._folder.close()


async def open_sqlite(
    path: Path, limits: StoreLimits | None = None, clock: Callable[[], float] = time.time
) -> SqliteStore:
    """Open or make the store in this folder. What was in progress is queued again.

    Raises SettingsError for the folder, StoreUnusable for what is in it.
    """
    folder = await asyncio.to_thread(Folder, str(path))
    try:
        connection = await asyncio.to_thread(open_for_writing, path / FILE)
    except BaseException:
        folder.close()
        raise
    return SqliteStore(folder, connection, limits or StoreLimits(), clock)


def _usage(connection: sqlite3.Connection) -> Usage:
    connection.create_function("document_size", 2, size_of_content, deterministic=True)
    usage = Usage()
    for owner, held in connection.execute(HELD_BY_OWNER):
        usage.add(owner, held=int(held))
    for owner, open_bytes, num_open in connection.execute(OPEN_BY_OWNER):
        usage.add(owner, open_bytes=int(open_bytes), num_open=num_open)
    return usage


def room_beside(database: Path) -> int:
    """Bytes that the disk takes before the log of an SQLite file, its WAL, finds no room in that file."""
    disk = os.statvfs(database.parent)
    log = Path(f"{database}-wal")
    return disk.f_bavail * disk.f_frsize - (log.stat().st_size if log.exists() else 0)


def open_for_writing(file: Path) -> sqlite3.Connection:
    """The connection that writes, its tables made or of the version that we know, else StoreUnusable."""
    try:
        if said := check_log(file):
            logger.error("--jobs: %s", said)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        check_pages(connection, file)
        _prepare(connection, file)
        connection.row_factory = sqlite3.Row
    except (OSError, sqlite3.Error) as error:
        raise StoreUnusable(f"{file} can't be opened as a store of jobs: {error}") from error
    sync_folder(file.parent)
    return connection


def _prepare(connection: sqlite3.Connection, file: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not version and not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    elif version != VERSION:
        connection.close()
        raise StoreUnusable(f"{file} is a store of version {version}, and this server knows version {VERSION} alone")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
    if not tables:
        numbers = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        connection.executescript(f"BEGIN; {TABLES} {numbers} COMMIT;")
    for index in INDEXES:
        connection.execute(index)
    connection.execute("UPDATE requests SET status = 'QUEUED' WHERE status = 'IN_PROGRESS'")


def check_log(file: Path) -> str | None:
    """A sentence for the log of a server whose last commits may be lost; None where there is nothing to say.

    Raises StoreUnusable where commits are lost for certain, and OSError.
    """
    log, index = Path(f"{file}-wal"), Path(f"{file}-shm")
    size = log.stat().st_size if log.exists() else 0
    if size > _LOG_HEAD and not (file.exists() and file.stat().st_size):
        raise StoreUnusable(f"{file} is empty, and its log {log.name} is not: put it back from a copy")
    found = _read(log) if size > _LOG_HEAD else None
    known, in_file = _frames_of_index(index, found.salts if found else b"")
    num_committed = found.num_committed if found else 0
    if num_committed < known:
        end = found.end if found and num_committed >= in_file else 0
        lost = "what was accepted last is lost" if known > in_file else "nothing is lost that is in the file"
        raise StoreUnusable(
            f"{log} is damaged behind byte {found.end if found else 0}: {lost}. Put the folder back from a copy; or go "
            f"on with what is left, by: truncate -s {end} {log} && rm -f {index}"
        )
    if size > _LOG_HEAD and (found is None or found.num_behind):
        return f"{log.name} is not whole: a loss of power cut off its last commit, or it is damaged and more are lost"
    return None


def check_pages(connection: sqlite3.Connection, file: Path) -> None:
    """Raises StoreUnusable where the file is damaged. Of a large one only what finds requests and documents."""
    is_large = file.stat().st_size > _MANY_BYTES
    asked = (
        [f"PRAGMA integrity_check({name})" for name in ("requests", "documents")]
        if is_large
        else ["PRAGMA quick_check"]
    )
    for question in asked:
        (answer,) = connection.execute(question).fetchone()
        if answer != "ok":
            raise StoreUnusable(f"{file} is damaged, put the folder back from a copy: {answer.splitlines()[0]}")


@dataclass(frozen=True, slots=True)
class _Log:
    num_committed: int  # frames, of all commits before the first bad frame
    num_behind: int  # commits behind it
    salts: bytes
    page_size: int

    @property
    def end(self) -> int:
        """The end of what is sound, in bytes of the file."""
        return _LOG_HEAD + self.num_committed * (_FRAME_HEAD + self.page_size)


def _frames_of_index(index: Path, salts: bytes) -> tuple[int, int]:
    """The number of frames that the latest process committed, and how many of them are in the file.

    0 where nobody knows, as after a loss of power.
    """
    try:
        with index.open("rb") as opened:
            first, second, in_file = opened.read(_INDEX_HEAD), opened.read(_INDEX_HEAD), opened.read(4)
    except OSError:
        return 0, 0
    if len(in_file) < 4 or first != second or not first[12] or (salts and first[32:40] != salts):
        return 0, 0
    sums = _sums(np.frombuffer(first[:40], np.uint32)[None], np.zeros((1, 2), np.uint32))
    if sums.tobytes() != first[40:]:
        return 0, 0
    return int(struct.unpack_from("=I", first, 16)[0]), int(struct.unpack("=I", in_file)[0])


def _read(log: Path) -> _Log | None:
    """Returns None where the log's head is damaged."""
    with log.open("rb") as opened:
        head = opened.read(_LOG_HEAD)
        magic, _, page_size = struct.unpack_from(">III", head)
        order = ">" if magic & 1 else "<"
        words = np.frombuffer(head[:24], f"{order}u4").astype(np.uint32)
        last = _sums(words[None], np.zeros((1, 2), np.uint32))
        if magic & ~1 != _MAGIC or last.astype(">u4").tobytes() != head[24:]:
            return None
        return _frames(opened, head[16:24], page_size, order, last)


def _frames(opened: Any, salts: bytes, page_size: int, order: str, last: _Words) -> _Log:
    size, number, committed, behind, is_sound = _FRAME_HEAD + page_size, 0, 0, 0, True
    while rows := opened.read(size * _AT_A_TIME):
        frames = np.frombuffer(rows[: len(rows) // size * size], np.uint8).reshape(-1, size)
        is_ours = (frames[:, 8:16] == np.frombuffer(salts, np.uint8)).all(axis=1)
        stored = np.ascontiguousarray(frames[:, 16:24]).view(">u4").astype(np.uint32)
        before = np.concatenate([last, stored[:-1]])
        words = np.concatenate([frames[:, :8], frames[:, _FRAME_HEAD:]], axis=1).view(f"{order}u4").astype(np.uint32)
        is_right = is_ours & (_sums(words, before) == stored).all(axis=1)
        commits = np.ascontiguousarray(frames[:, 4:8]).view(">u4")[:, 0] != 0
        num_sound = int(np.argmin(is_right)) if not is_right.all() else len(frames)
        if not is_sound:
            num_sound = 0
        if (sound := np.flatnonzero(commits[:num_sound])).size:
            committed = number + int(sound[-1]) + 1
        behind += int((commits & is_right)[num_sound:].sum())
        is_sound &= num_sound == len(frames)
        number, last = number + len(frames), stored[-1:]
        if len(rows) % size or not is_ours.any():
            break
    return _Log(committed, behind, salts, page_size)


def _sums(words: _Words, before: _Words) -> _Words:
    """SQLite's checksums of rows of words, each from the one before it."""
    first, second = before[:, 0].copy(), before[:, 1].copy()
    for at in range(0, words.shape[1], 2):
        first += words[:, at] + second
        second += words[:, at + 1] + first
    return np.stack([first, second], axis=1)
