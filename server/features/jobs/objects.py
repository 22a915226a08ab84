"""Files of --jobs-files: objects of a store that fsspec knows, as s3://. They are put whole and read by ranges.

A file that is removed loses its bytes here or in that store first, then its document.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from server.features.jobs.disk import FULL_ERRORS
from server.features.jobs.store.store import DocumentStore, Signal, StoreError, StoreUnavailable, StoreUnusable
from server.features.jobs.types import Document

_PROBE = ".embedline"
_MAX_CALLS = 8  # at a time
AT_ONCE_SECONDS = 5.0  # that a caller waits for an object store
RETRY_PAUSE = 5.0  # while that is away
_Value = TypeVar("_Value")


class Objects:
    """Those below one prefix, by the ids of files. All calls raise StoreUnavailable.

    They have threads of their own, so that a store that hangs delays nothing but what needs it.
    """

    def __init__(self, url: str) -> None:
        """Raises StoreUnusable where no library knows it."""
        import fsspec  # an extra

        self._threads = ThreadPoolExecutor(_MAX_CALLS, "objects")
        with _usable():
            self._filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        self._root = str(root).rstrip("/")

    def check(self) -> None:
        """Blocking. Raises StoreUnusable where nothing can be written there."""
        with _usable():
            self._filesystem.pipe_file(self._key(_PROBE), b"")
            with contextlib.suppress(FileNotFoundError):  # a server that starts beside this one has removed it
                self._filesystem.rm_file(self._key(_PROBE))

    async def put(self, path: Path, file_id: str) -> None:
        """Seen once it is whole. Raises FileNotFoundError of the path."""
        try:
            await self._asked(self._filesystem.put_file, str(path), self._key(file_id))
        except FileNotFoundError:
            if not await asyncio.to_thread(path.exists):
                raise
            raise StoreUnavailable("--jobs-files does not do it: the bucket or folder is gone") from None

    async def fetch(self, file_id: str, path: Path) -> None:
        """Into a file that appears when it is whole. Raises FileNotFoundError, OSError."""
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            await self._asked(self._filesystem.get_file, self._key(file_id), str(part))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    async def read(self, file_id: str, offset: int, count: int) -> bytes:
        """Raises FileNotFoundError."""
        size = int(await self._asked(self._filesystem.size, self._key(file_id)))
        if offset >= size:
            return b""
        return await self._asked(self._read, self._key(file_id), offset, min(offset + count, size))

    async def exists(self, file_id: str) -> bool:
        try:
            await self._asked(self._filesystem.info, self._key(file_id))  # `exists` says no where a store is away
        except FileNotFoundError:
            return False
        return True

    async def delete(self, file_id: str) -> None:
        """Nothing is said of one that is not there."""
        with contextlib.suppress(FileNotFoundError):
            await self._asked(self._filesystem.rm_file, self._key(file_id))

    def _key(self, file_id: str) -> str:
        return f"{self._root}/{file_id}"

    def _read(self, key: str, start: int, stop: int) -> bytes:
        found: bytes = self._filesystem.cat_file(key, start=start, end=stop)
        return found

    async def _asked(self, ask: Callable[..., _Value], *given: Any) -> _Value:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(ask, *given))
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno in FULL_ERRORS:  # of the disk that it is fetched to
                raise
            raise StoreUnavailable(f"--jobs-files does not do it: {type(error).__name__}") from None
        except Exception as error:
            raise StoreUnavailable(f"--jobs-files does not do it: {type(error).__name__}") from None


@contextlib.contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each library has errors of its own
        raise StoreUnusable(f"--jobs-files can't be written: {type(error).__name__}") from None


class Removal:
    """Removes files that nobody sees any more: their bytes, then their documents.

    Bytes that an object store does not give up now are asked for again later, so that nobody waits for a store that is
    away, and nothing stays in it. `run` tries again until it is cancelled.
    """

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
