"""A table of PostgreSQL with pgvector. A shard is one transaction: copied into a temporary table, then upserted."""

import contextlib
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from server.backfill.errors import BackfillError, RefusedJob
from server.backfill.parts import Content
from server.backfill.plan import Plan
from server.backfill.sinks.copying import binary_copy
from server.backfill.sinks.pgvector_table import Table
from server.backfill.sinks.sink import SinkAway

# Where the URL says nothing else. A connection that is dead is noticed within two minutes.
_DEFAULTS = {
    "application_name": "embedline backfill",
    "connect_timeout": "10",  # seconds
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # ms
}


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
                # Of several workers that begin at once one makes the table.
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
                with cursor.copy(self._table.copy_statement) as copy:
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
        """Of the table. Raises BackfillError."""
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
    """What the server said, or the library."""
    return " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
