"""A table of PostgreSQL with pgvector. A shard is one transaction: copied into a temporary table, then upserted.

The table has an id, and an embedding in a type of pgvector; it may have other columns. Rows go as PostgreSQL's COPY
takes them in its binary format, and vectors as pgvector's own functions receive them.
"""

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import Cursor, Error, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from server.features.backfill.errors import BackfillError, RefusedJob, SinkAway, in_words
from server.features.backfill.parts import Content
from server.features.backfill.plan import Plan

_STAGED = sql.Identifier("embedline_staged")
_COPY = sql.SQL("COPY {} (id, embedding) FROM STDIN (FORMAT BINARY)").format(_STAGED)
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
"""
_EXTENSION = """
SELECT n.nspname, e.extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'vector'
"""
_Cursor = Cursor[Any]
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no more of a header
_NULL, _END = struct.pack(">i", -1), struct.pack(">h", -1)
_ROWS_AT_A_TIME = 512
# Where the URL says nothing else. A connection that is dead is noticed within two minutes.
_DEFAULTS = {
    "application_name": "embedline backfill",
    "connect_timeout": "10",  # seconds
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # ms
}


@dataclass(frozen=True, slots=True)
class Table:
    """Names and types, ready for statements."""

    name: sql.Identifier
    id_type: str  # bigint or text
    vector_type: sql.Composed  # with its schema and dimensions

    @classmethod
    def opened(cls, cursor: _Cursor, name: str, plan: Plan, *, may_create: bool) -> "Table":
        """Opens the table, or makes it. Raises RefusedJob where it is not as the plan needs it, and psycopg.Error."""
        kind = "halfvec" if plan.dtype == "float16" else "vector"
        schema = _schema_of_pgvector(cursor, kind)
        vector_type = sql.SQL("{}({})").format(sql.Identifier(schema, kind), sql.Literal(plan.dimensions))
        id_type = "text" if plan.id_type.endswith("string") else "bigint"
        table = cls(sql.Identifier(*name.split(".")), id_type, vector_type)
        found = table._columns(cursor)
        if not found:
            if not may_create:
                raise RefusedJob(f"there is no table {name}, but parts of this job are in it: where is it?")
            cursor.execute(
                sql.SQL("CREATE TABLE {} (id {} PRIMARY KEY, embedding {})").format(
                    table.name, sql.SQL(id_type), vector_type
                )
            )
            found = table._columns(cursor)
        wanted = {"id": id_type, "embedding": f"{kind}({plan.dimensions})"}
        for column, type_name in wanted.items():
            has = found.get(column, "no such column")
            if has.rpartition(".")[2] != type_name:  # with a schema that is not on the search path
                raise RefusedJob(f"the table {name} has {has} as {column}, and this job has {type_name}")
        return table

    def _columns(self, cursor: _Cursor) -> dict[str, str]:
        cursor.execute(_COLUMNS, [self.name.as_string(cursor)])
        return dict(cursor.fetchall())

    def stage(self, cursor: _Cursor) -> None:
        """Make a table that ends with the transaction."""
        cursor.execute(
            sql.SQL("CREATE TEMP TABLE {} (id {}, embedding {}) ON COMMIT DROP").format(
                _STAGED, sql.SQL(self.id_type), self.vector_type
            )
        )

    def upsert(self, cursor: _Cursor) -> int:
        """Moves what is staged into the table, by ids, so that two jobs never wait for each other; how many rows."""
        cursor.execute(
            sql.SQL(
                "INSERT INTO {} (id, embedding) SELECT id, embedding FROM {} ORDER BY id "
                "ON CONFLICT (id) DO UPDATE SET embedding = EXCLUDED.embedding"
            ).format(self.name, _STAGED)
        )
        return cursor.rowcount

    def num_rows(self, cursor: _Cursor) -> int:
        """Count the rows, of all jobs."""
        cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(self.name))
        return int(cursor.fetchall()[0][0])


def _schema_of_pgvector(cursor: _Cursor, kind: str) -> str:
    """The schema that has pgvector's type, which is made where it is not there. Raises RefusedJob where that is not
    allowed, or it has no such type."""
    if not (found := cursor.execute(_EXTENSION).fetchall()):
        try:
            cursor.execute("CREATE EXTENSION vector")
        except Error as error:
            why = error.diag.message_primary
            raise RefusedJob(f"this database has no pgvector, and it can't be made (CREATE EXTENSION): {why}") from None
        found = cursor.execute(_EXTENSION).fetchall()
    schema, version = found[0]
    cursor.execute("SELECT 1 FROM pg_type WHERE typname = %s AND typnamespace = %s::regnamespace", [kind, schema])
    if not cursor.fetchall():
        raise RefusedJob(f"pgvector {version} has no {kind}: update it to 0.7 or use --output-dtype float32")
    return str(schema)


class PgvectorSink:
    """One connection, made again after it was lost."""

    def __init__(self, url: str, table: str) -> None:
        """Connects. `table`: its name, or schema.name. Raises RefusedJob; no message has the password."""
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:  # its words may have the password
            raise RefusedJob("OUT is no URL of PostgreSQL: user, password and names must be percent-encoded") from None
        self._conninfo = make_conninfo("", **{**_DEFAULTS, **given, "client_encoding": "UTF8"})
        self._name = table
        self._table: Table | None = None  # known from `begin` on
        try:
            self._connection = self._connected()
        except psycopg.Error as error:
            raise RefusedJob(f"OUT can't be reached: {_in_a_line(error)}") from None
        info = self._connection.info
        self.where = f"{given.get('host', info.host)}:{info.port}/{info.dbname} table {table}"

    def _connected(self) -> "psycopg.Connection[tuple[object, ...]]":
        # Nothing is prepared, and nothing outlives a transaction: a pooler may give each another connection.
        return psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)

    def begin(self, plan: Plan, *, may_create: bool) -> None:
        """Makes the extension and the table where they are not there. Raises RefusedJob for a table of another shape,
        and where this user may not write to it."""
        try:
            with self._transaction() as cursor:
                # Where several workers begin at once one makes the table.
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext('embedline backfill'))")
                table = Table.opened(cursor, self._name, plan, may_create=may_create)
                table.stage(cursor)
                table.upsert(cursor)  # of no rows: tells what this user may not do
        except psycopg.Error as error:
            raise RefusedJob(f"the table {self._name} can't be used: {_in_a_line(error)}") from None
        self._table = table

    def put(self, content: Content) -> None:
        """One transaction. Raises SinkAway and BackfillError."""
        assert self._table is not None
        try:
            if self._connection.closed:
                self._connection = self._connected()
            with self._transaction() as cursor:
                self._table.stage(cursor)
                with cursor.copy(_COPY) as copy:
                    for piece in binary_copy(content):
                        copy.write(piece)
                num_staged = cursor.rowcount
                if self._table.upsert(cursor) != num_staged:
                    raise BackfillError(f"the table {self._name} took not every row: has it triggers or policies?")
        except psycopg.OperationalError as error:
            self.close()
            raise SinkAway(f"the database can't be written to: {_in_a_line(error)}") from None
        except psycopg.Error as error:
            raise BackfillError(f"the table {self._name} refuses: {_in_a_line(error)}") from None

    def num_rows(self) -> int:
        """The rows of the table. Raises BackfillError."""
        assert self._table is not None
        try:
            if self._connection.closed:
                self._connection = self._connected()
            with self._transaction() as cursor:
                return self._table.num_rows(cursor)
        except psycopg.Error as error:
            raise BackfillError(f"the rows of {self._name} can't be counted: {_in_a_line(error)}") from None

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> "Iterator[psycopg.Cursor[tuple[object, ...]]]":
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '5min'")
            yield cursor


def _in_a_line(error: psycopg.Error) -> str:
    return " ".join((error.diag.message_primary or "").split()) or in_words(error)


def binary_copy(content: Content) -> Iterator[bytes]:
    """The rows that have an id, as (id, embedding), null where a row failed. Ids are int (bigint) or str (text); rows
    float16 (halfvec) or float32 (vector)."""
    yield _HEAD
    for start in range(0, len(content.ids), _ROWS_AT_A_TIME):
        stop = min(start + _ROWS_AT_A_TIME, len(content.ids))
        vectors = _vectors(content.rows[start:stop])
        places = (place for place in range(start, stop) if content.ids[place] is not None)
        yield b"".join(
            b"\0\2" + _id(content.ids[place]) + (_NULL if place in content.failed else vectors[place - start])
            for place in places
        )
    yield _END


def _id(key: int | str) -> bytes:
    if isinstance(key, int):
        return struct.pack(">iq", 8, key)
    data = key.encode()
    return struct.pack(">i", len(data)) + data


def _vectors(rows: NDArray[np.floating]) -> list[bytes]:
    """Fields of [n, dimensions]: the length of the field, the dimensions, two bytes of nothing, the numbers."""
    dimensions = rows.shape[1]
    head = struct.pack(">ihh", 4 + dimensions * rows.itemsize, dimensions, 0)
    return [head + row.tobytes() for row in rows.astype(rows.dtype.newbyteorder(">"))]
