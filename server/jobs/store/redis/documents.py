"""The documents of a store in Redis."""

from collections.abc import Sequence

from server.jobs.store.errors import StoreError
from server.jobs.store.redis import document_scripts as scripts
from server.jobs.store.redis.connection import IDS_AT_ONCE, Connection, limits_text
from server.jobs.store.room import refuse_growth, size_of_content, size_of_document
from server.jobs.types import Document

FIELDS = ("owner", "state", "content", "created_at", "held_bytes", "version")


class RedisDocuments:
    """A DocumentStore."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._limits = connection.limits

    async def put(self, document: Document, *, needs: int | None = None) -> None:
        size = 0
        if needs != 0:
            size = size_of_content(len(document.content), needs or document.held_bytes)
        known = ("content", document.content, "created_at", repr(document.created_at))
        held_bytes = ("held_bytes", document.held_bytes)
        what, *more = await self._connection.run(scripts.PUT, *self._named(document), size, *known, *held_bytes)
        if what == b"taken":
            raise StoreError(f"there is a {document.kind} of this id already")
        if what == b"full":
            refuse_growth(size, self._limits, document.owner, *more)

    async def get(self, owner: str, kind: str, document_id: str) -> Document | None:
        found = await self._read(kind, [document_id])
        return found[0] if found and found[0].owner == owner else None

    async def newest(self, owner: str, kind: str, *, after: str | None = None, limit: int = 20) -> list[Document]:
        key = f"{self._connection.prefix}owned:{kind}:{owner}"
        below = "+inf"
        if after is not None:
            (seq,) = await self._connection.read(("ZSCORE", key, after))
            if seq is None:
                return []
            below = f"({float(seq):.17g}"
        (ids,) = await self._connection.read(("ZREVRANGEBYSCORE", key, below, "-inf", "LIMIT", 0, limit))
        return await self._read(kind, [one.decode() for one in ids])

    async def in_state(self, kind: str, state: str, *, after: str | None = None, limit: int = 100) -> list[Document]:
        key = f"{self._connection.prefix}stated:{kind}:{state}"
        above = "-inf"
        if after is not None:
            (seq,) = await self._connection.read(("ZSCORE", key, after))
            if seq is None:
                return []
            above = f"({float(seq):.17g}"
        (ids,) = await self._connection.read(("ZRANGEBYSCORE", key, above, "+inf", "LIMIT", 0, limit))
        found = await self._read(kind, [one.decode() for one in ids])
        return [one for one in found if one.state == state]

    async def held(self, owner: str, kind: str) -> tuple[int, int]:
        count = total = 0
        key = f"{self._connection.prefix}owned:{kind}:{owner}"
        while True:
            (ids,) = await self._connection.read(("ZRANGE", key, count, count + IDS_AT_ONCE - 1))
            if not ids:
                return count, total
            keys = [f"{self._connection.prefix}document:{kind}:{one.decode()}" for one in ids]
            sizes = await self._connection.read(*(("HGET", one, "held_bytes") for one in keys))
            total += sum(int(size or 0) for size in sizes)
            count += len(ids)

    async def replace(self, document: Document) -> bool:
        given = (document.version, document.content, document.held_bytes)
        what, *more = await self._connection.run(scripts.REPLACE, *self._named(document), *given)
        if what == b"full":
            growth, *held = more
            refuse_growth(growth, self._limits, document.owner, *held)
        return bool(what == b"kept")

    async def delete(self, owner: str, kind: str, document_id: str) -> bool:
        return bool(await self._connection.run(scripts.DELETE, kind, document_id, owner))

    def _named(self, document: Document) -> tuple[str | int, ...]:
        size = size_of_document(document)
        names = (document.kind, document.document_id, document.owner, document.state)
        return (limits_text(self._limits), *names, size)

    async def _read(self, kind: str, ids: Sequence[str]) -> list[Document]:
        """Those of them that are there."""
        if not ids:
            return []
        keys = [f"{self._connection.prefix}document:{kind}:{one}" for one in ids]
        rows = await self._connection.read(*(("HMGET", key, *FIELDS) for key in keys))
        return [_document(kind, one, *row) for one, row in zip(ids, rows, strict=True) if row[0] is not None]


def _document(kind: str, document_id: str, *row: bytes) -> Document:
    owner, state, content, created_at, held_bytes, version = row
    return Document(
        kind,
        document_id,
        owner.decode(),
        state.decode(),
        content,
        created_at=float(created_at),
        held_bytes=int(held_bytes),
        version=int(version),
    )
