"""The tables, and how the file that holds them is opened. What it keeps of a closed server is put in order here."""

import logging
import os
import sqlite3
from pathlib import Path

from server.jobs.store.disk import sync_folder
from server.jobs.store.errors import StoreUnusable
from server.jobs.store.sqlite.damage import check_log, check_pages

VERSION = 1
APPLICATION_ID = 0x656D626A  # "embj"
MAX_LOG_BYTES = 64 << 20  # what stays of the write-ahead log between checkpoints

logger = logging.getLogger("embedline.server")

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


def open_for_writing(file: Path) -> sqlite3.Connection:
    """The connection that writes, its tables made or of the version that we know, else StoreUnusable."""
    try:
        if said := check_log(file):
            logger.error("--jobs: %s", said)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        check_pages(connection, file)
        _prepare(connection, file)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnusable(f"{file} can't be opened as a store of jobs: {error}") from error
    sync_folder(file.parent)
    return connection


def open_for_reading(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = 1")
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


def shorten_waits(connection: sqlite3.Connection, now: float, result_ttl: float) -> None:
    """No wait may be longer than its whole length from now: after the clock went back, nothing hangs."""
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
