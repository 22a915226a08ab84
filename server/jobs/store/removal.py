"""Removes files that nobody sees any more: their bytes, then their documents.

Bytes that an object store does not give up now are asked for again later, so that nobody waits for a store that is
away, and nothing stays in it.
"""

import asyncio
import contextlib
from pathlib import Path

from server.jobs.store.errors import StoreError
from server.jobs.store.objects import Objects
from server.jobs.store.signal import Signal
from server.jobs.store.store import DocumentStore
from server.jobs.types import Document

AT_ONCE_SECONDS = 5.0  # that a caller waits for an object store
RETRY_PAUSE = 5.0  # while that is away


class Removal:
    """`run` tries again until it is cancelled."""

    def __init__(self, folder: Path, documents: DocumentStore, objects: Objects | None) -> None:
        """objects  where files may lie too"""
        self._folder = folder
        self._documents = documents
        self._objects = objects
        self._left: dict[str, Document] = {}  # those whose bytes may be in the object store
        self._changed = Signal()

    async def remove(self, document: Document) -> None:
        """Its state is one that no client sees. Raises OSError, and what the store of documents raises."""
        await asyncio.to_thread(self._remove_bytes, document.document_id)
        self._left[document.document_id] = document
        try:
            async with asyncio.timeout(AT_ONCE_SECONDS if self._objects is not None else None):
                await self._finish(document)
        except (TimeoutError, StoreError):
            if self._objects is None:
                raise
            self._changed.set()

    def _remove_bytes(self, document_id: str) -> None:
        (self._folder / document_id).unlink(missing_ok=True)
        self._folder.stat()  # where all of it is away, its bytes would come back

    def has(self, document_id: str) -> bool:
        """Whether it is being removed here."""
        return document_id in self._left

    async def run(self) -> None:
        """Try again what is left, whenever there is something."""
        while True:
            self._changed.clear()
            with contextlib.suppress(StoreError):
                for document in list(self._left.values()):
                    await self._finish(document)
            if self._left:
                await asyncio.sleep(RETRY_PAUSE)
            else:
                await self._changed.wait(None)

    async def _finish(self, document: Document) -> None:
        """The bytes go first: a document without them is removed again, bytes without one would stay for ever."""
        if self._objects is not None:
            await self._objects.delete(document.document_id)
        await self._documents.delete(document.owner, document.kind, document.document_id)
        self._left.pop(document.document_id, None)
