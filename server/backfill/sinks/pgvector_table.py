"""The table of a job in PostgreSQL: id, and embedding in a type of pgvector. It may have other columns."""

from dataclasses import dataclass
from typing import Any

from psycopg import Cursor, Error, sql

from server.backfill.errors import RefusedJob
from server.backfill.plan import Plan

_STAGED = sql.Identifier("embedline_staged")
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


@dataclass(frozen=True, slots=True)
class Table:
    """Names and types, ready for statements."""

    name: sql.Identifier
    id_type: str  # bigint or text
    vector_type: sql.Composed  # with its schema and dimensions

    @classmethod
    def opened(cls, cursor: _Cursor, name: str, plan: Plan, *, may_create: bool) -> "Table":
        """Made where it is not there. Raises RefusedJob where it is not as the plan needs it, and psycopg.Error."""
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
        """Names and types; none where there is no such table."""
        cursor.execute(_COLUMNS, [self.name.as_string(cursor)])
        return dict(cursor.fetchall())

    def stage(self, cursor: _Cursor) -> None:
        """Make a table that ends with the transaction."""
        cursor.execute(
            sql.SQL("CREATE TEMP TABLE {} (id {}, embedding {}) ON COMMIT DROP").format(
                _STAGED, sql.SQL(self.id_type), self.vector_type
            )
        )

    @property
    def copy_statement(self) -> sql.Composed:
        """Into the staged table."""
        return sql.SQL("COPY {} (id, embedding) FROM STDIN (FORMAT BINARY)").format(_STAGED)

    def upsert(self, cursor: _Cursor) -> int:
        """What is staged, in the order of the ids, so that two jobs never wait for each other; how many rows."""
        cursor.execute(
            sql.SQL(
                "INSERT INTO {} (id, embedding) SELECT id, embedding FROM {} ORDER BY id "
                "ON CONFLICT (id) DO UPDATE SET embedding = EXCLUDED.embedding"
            ).format(self.name, _STAGED)
        )
        return cursor.rowcount

    def num_rows(self, cursor: _Cursor) -> int:
        """All of them."""
        cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(self.name))
        return int(cursor.fetchall()[0][0])


def _schema_of_pgvector(cursor: _Cursor, kind: str) -> str:
    """Made where it is not there. Raises RefusedJob where that is not allowed, or it has no such type."""
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
