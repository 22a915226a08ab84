"""OUT as a database: which one it is, and what it takes to reach it."""

import importlib.util
import os

import fsspec

from server.backfill.errors import RefusedJob
from server.backfill.sinks.sink import Sink

_KINDS = {
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "qdrant+http": "qdrant",
    "qdrant+https": "qdrant",
}
_LIBRARIES = {"pgvector": "psycopg", "qdrant": "qdrant_client"}
_DEFAULT_TABLE = "embeddings"


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
    """Raises RefusedJob where its library is not installed, and where it can't be reached."""
    kind = kind_of(out)
    assert kind is not None
    if importlib.util.find_spec(_LIBRARIES[kind]) is None:
        raise RefusedJob(f"OUT needs {_LIBRARIES[kind]}, which is not here: pip install 'embedline[{kind}]'")
    if kind == "pgvector":
        from server.backfill.sinks.pgvector import PgvectorSink

        return PgvectorSink(out, table or _DEFAULT_TABLE)
    if table is not None:
        raise RefusedJob("--table is for PostgreSQL: the last part of a qdrant URL is the collection")
    from server.backfill.sinks.qdrant import QdrantSink

    return QdrantSink(out, os.environ.get("QDRANT_API_KEY"))
