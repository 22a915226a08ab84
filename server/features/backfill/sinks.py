"""OUT as a database: what a job asks of one, which one it is, and what it takes to reach it.

A database that is away for minutes, as one that restarts, does not end a job that runs for days. Each row must have an
id, and no other row the same one, or one row would overwrite another.
"""

import contextlib
import importlib.util
import itertools
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from typing import Protocol

import fsspec

from embedline.client.preference import CancellationToken
from server.features.backfill.errors import RefusedJob, SinkAway, Stopped
from server.features.backfill.parts import Content
from server.features.backfill.plan import Plan
from server.features.backfill.readers import BadText, is_unicode
from server.features.backfill.source import Source

_KINDS = {
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "qdrant+http": "qdrant",
    "qdrant+https": "qdrant",
}
_LIBRARIES = {"pgvector": "psycopg", "qdrant": "qdrant_client"}
_SEVERAL = "SELECT min(row), max(row) FROM ids GROUP BY id HAVING count(*) > 1 LIMIT 1"
_WAITS = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60, 60, 60, 60, 60)  # seconds before another try: nine minutes in all

logger = logging.getLogger("embedline.server")


class Sink(Protocol):
    """A place for rows in a database, by their ids: what is put again overwrites. One thread's at a time."""

    @property
    def where(self) -> str:
        """The place in words, without user and password. The manifest has it."""

    def begin(self, plan: Plan, *, may_create: bool) -> None:
        """Prepare the place, once, before the first `put`. Raises RefusedJob where the place has another shape, or is
        not there and may not be made."""

    def put(self, content: Content) -> None:
        """Write all rows of a shard; on return they outlive whatever the database outlives. Raises SinkAway, and
        BackfillError where trying again is of no use."""

    def num_rows(self) -> int:
        """The number of rows that are there, of whichever job. Raises BackfillError."""

    def close(self) -> None:
        """Let go of the connection."""


def kind_of(out: str) -> str | None:
    """pgvector or qdrant; None for a path, and a URL of files. Raises RefusedJob for a URL of nothing that is known."""
    scheme, separator, _ = out.partition("://")
    if separator and scheme not in _KINDS and scheme not in fsspec.available_protocols():
        known = ", ".join(_KINDS)
        raise RefusedJob(
            f"OUT must be a folder, a URL that fsspec knows, as s3://, or begin with one of {known} and ://"
        )
    return _KINDS.get(scheme) if separator else None


def opened(out: str, table: str | None) -> Sink:
    """The database behind OUT. Raises RefusedJob where its library is not installed, and where it can't be reached."""
    kind = kind_of(out)
    assert kind is not None
    if importlib.util.find_spec(_LIBRARIES[kind]) is None:
        raise RefusedJob(f"OUT needs {_LIBRARIES[kind]}, which is not here: pip install 'embedline[{kind}]'")
    if kind == "pgvector":
        from server.features.backfill.pgvector import PgvectorSink

        return PgvectorSink(out, table or "embeddings")
    if table is not None:
        raise RefusedJob("--table is for PostgreSQL: the last part of a qdrant URL is the collection")
    from server.features.backfill.qdrant import QdrantSink

    return QdrantSink(out, os.environ.get("QDRANT_API_KEY"))


def persistent(sink: Sink, token: CancellationToken) -> Callable[[Content], None]:
    """Do `sink.put`, and try again while the database is away. Raises Stopped when the token is cancelled meanwhile,
    and what the last try raised."""
    stopped = threading.Event()
    token.watch(stopped.set)

    def put(content: Content) -> None:
        for seconds in _WAITS:
            try:
                return sink.put(content)
            except SinkAway as error:
                logger.warning("%s; it is tried again in %s s", error, seconds)
            if stopped.wait(seconds):
                raise Stopped("stopped by a signal")
        return sink.put(content)

    return put


def check_ids(source: Source) -> None:
    """Reads the whole input once. The ids go to a temporary file, so that memory is flat in their number. Raises
    RefusedJob for an id of two rows, for a row with a text and no id, and for ids that no database takes."""
    is_text = source.id_type.endswith("string")
    with contextlib.closing(sqlite3.connect("", isolation_level=None)) as found:
        found.execute("PRAGMA journal_mode = OFF")
        found.execute("CREATE TABLE ids (id, row INTEGER PRIMARY KEY)")
        found.execute("BEGIN")
        first = 0
        try:
            for rows in source.read(0):
                numbered = zip(itertools.count(first), rows.ids, rows.texts, strict=False)
                first += len(rows)
                # a broken line has neither id nor text: it goes to no database
                kept = [(row, key) for row, key, text in numbered if key is not None or not isinstance(text, BadText)]
                for row, key in kept:
                    _check(row, key, is_text=is_text)
                found.executemany("INSERT INTO ids (row, id) VALUES (?, ?)", kept)
            twice = found.execute(_SEVERAL).fetchone()
        except sqlite3.Error as error:
            raise RefusedJob(f"the ids can't be compared in the temporary folder: {error}") from None
    if twice is not None:
        raise RefusedJob(f"rows {twice[0]} and {twice[1]} have one id: in a database one would overwrite the other")


def _check(row: int, key: object, *, is_text: bool) -> None:
    """Raises RefusedJob for an id that a database can't have."""
    if key is None:
        raise RefusedJob(f"row {row} has no id, and a database needs one; without --id-column rows are numbered")
    if type(key) is not (str if is_text else int):
        raise RefusedJob(
            f"the id of row {row} is no {'text' if is_text else 'whole number'}, as the ids of this job are"
        )
    if isinstance(key, int) and not -(1 << 63) <= key < 1 << 63:
        raise RefusedJob(f"the id of row {row} is no number of 64 bits")
    if isinstance(key, str) and ("\0" in key or not is_unicode(key)):
        raise RefusedJob(f"the id of row {row} is no text that a database takes")
