"""The documents of a store in SQLite."""

import sqlite3
from functools import partial

from server.jobs.store.errors import StoreError
from server.jobs.store.room import refuse_growth, size_of_content, size_of_document
from server.jobs.store.sqlite.requests import Reader
from server.jobs.store.sqlite.writer import Transaction, Writer
from server.jobs.store.store import StoreLimits
from server.jobs.store.usage import Held
from server.jobs.types import Document

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


class SqliteDocuments:
    """A DocumentStore."""

    def __init__(self, writer: Writer, reader: Reader, limits: StoreLimits) -> None:
        self._writer = writer
        self._reader = reader
        self._limits = limits

    async def put(self, document: Document, *, needs: int | None = None) -> None:
        operation = partial(_put, limits=self._limits, document=document, needs=needs)
        await self._writer.do(operation, len(document.content))

    async def get(self, owner: str, kind: str, document_id: str) -> Document | None:
        found = await self._reader.do(partial(_find, kind=kind, document_id=document_id))
        return found if found is not None and found.owner == owner else None

    async def newest(self, owner: str, kind: str, *, after: str | None = None, limit: int = 20) -> list[Document]:
        given = {"owner": owner, "kind": kind, "after": after, "limit": limit}
        return await self._reader.do(lambda connection: [Document(*row) for row in connection.execute(LIST, given)])

    async def in_state(self, kind: str, state: str, *, after: str | None = None, limit: int = 100) -> list[Document]:
        given = {"kind": kind, "state": state, "after": after, "limit": limit}
        return await self._reader.do(lambda connection: [Document(*row) for row in connection.execute(IN_STATE, given)])

    async def held(self, owner: str, kind: str) -> tuple[int, int]:
        found: tuple[int, int] = await self._reader.do(
            lambda connection: connection.execute(HELD, (owner, kind)).fetchone()
        )
        return found

    async def replace(self, document: Document) -> bool:
        operation = partial(_replace, limits=self._limits, document=document)
        return await self._writer.do(operation, len(document.content))

    async def delete(self, owner: str, kind: str, document_id: str) -> bool:
        return await self._writer.do(partial(_delete, owner=owner, kind=kind, document_id=document_id))


def _find(connection: sqlite3.Connection, kind: str, document_id: str) -> Document | None:
    row = connection.execute(FIND, (kind, document_id)).fetchone()
    return None if row is None else Document(*row)


def _put(transaction: Transaction, limits: StoreLimits, document: Document, needs: int | None) -> None:
    if _find(transaction.connection, document.kind, document.document_id) is not None:
        raise StoreError(f"there is a {document.kind} of this id already")
    if needs != 0:
        _refuse_growth(
            transaction, limits, document.owner, size_of_content(len(document.content), needs or document.held_bytes)
        )
    known = (document.kind, document.document_id, document.owner, document.state, document.content)
    transaction.connection.execute(INSERT, (*known, document.created_at, document.held_bytes))
    transaction.usage.add(document.owner, held=size_of_document(document))


def _replace(transaction: Transaction, limits: StoreLimits, document: Document) -> bool:
    kept = _find(transaction.connection, document.kind, document.document_id)
    if kept is None or kept.version != document.version or kept.owner != document.owner:
        return False
    growth = size_of_document(document) - size_of_document(kept)
    if document.held_bytes > kept.held_bytes:
        _refuse_growth(transaction, limits, document.owner, growth)
    changed = (document.state, document.content, document.held_bytes)
    transaction.connection.execute(REPLACE, (*changed, document.kind, document.document_id))
    transaction.usage.add(document.owner, held=growth)
    return True


def _delete(transaction: Transaction, owner: str, kind: str, document_id: str) -> bool:
    kept = _find(transaction.connection, kind, document_id)
    if kept is None or kept.owner != owner:
        return False
    given = (kind, document_id)
    transaction.connection.execute("DELETE FROM documents WHERE kind = ? AND document_id = ?", given)
    transaction.usage.add(owner, held=-size_of_document(kept))
    return True


def _refuse_growth(transaction: Transaction, limits: StoreLimits, owner: str, size: int) -> None:
    total, its = transaction.usage.total, transaction.usage.by_owner.get(owner, Held())
    refuse_growth(size, limits, owner, total.held_bytes, its.held_bytes)
