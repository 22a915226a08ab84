"""Files of clients and of batches: bytes in a folder, what is known of them in the store.

The room of an upload is reserved as its bytes come, each step before it is written. A file is seen once all of it is on
the disk; what an upload left that never ended is removed. With --jobs-files whole files lie in an object store that
fsspec knows, as s3://: they are put whole and read by ranges.
"""

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from server.features.jobs.disk import FULL_ERRORS
from server.features.jobs.store.store import DocumentStore, StoreError, StoreFull, StoreUnavailable, StoreUnusable
from server.features.jobs.types import Document
from server.requests.errors import InvalidRequest
from wire.files import sync_folder

KIND = "file"
PIECE_BYTES = 64 * 1024  # of a file or a result that lies near: its client may not read it
_UPLOADING, _READY = "uploading", "ready"  # uploading: or being removed
_IDLE_SECONDS = 600.0  # of an upload; then its frontend has died
_MAX_UPLOADS_OF_OWNER = 64  # at a time
_MAX_UPLOADS = 512  # of all; but one of each owner always
_MAX_LEFT = 1000  # of other servers or processes that are looked at
_AHEAD_BYTES = 4 << 20  # reserved beside what has come
_PROBE = ".embedline"
_MAX_CALLS = 8  # of an object store at a time
AT_ONCE_SECONDS = 5.0  # that a caller waits for an object store
RETRY_PAUSE = 5.0  # while that is away
_Value = TypeVar("_Value")
_UNKNOWN = "this upload is not known, or not any more"

logger = logging.getLogger("embedline.jobs")


class FileInfo(msgspec.Struct, frozen=True):
    """The fields of a file that clients see, in OpenAI's words."""

    id: str
    bytes: int
    created_at: int  # unix seconds
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"


@dataclass(slots=True)
class _Upload:
    document: Document
    info: FileInfo
    descriptor: int
    most: int  # bytes that were announced
    seen_at: float  # of time.monotonic
    size: int = 0
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # while a thread uses the descriptor, nobody closes it


class Objects:
    """The objects below one prefix, by the ids of files. All calls raise StoreUnavailable.

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
        """Checks the place. Blocking. Raises StoreUnusable where nothing can be written there."""
        with _usable():
            self._filesystem.pipe_file(self._key(_PROBE), b"")
            with contextlib.suppress(FileNotFoundError):  # a server that starts beside this one has removed it
                self._filesystem.rm_file(self._key(_PROBE))

    async def put(self, path: Path, file_id: str) -> None:
        """Writes the object, which is seen once it is whole. Raises FileNotFoundError of the path."""
        try:
            await self._asked(self._filesystem.put_file, str(path), self._key(file_id))
        except FileNotFoundError:
            if not await asyncio.to_thread(path.exists):
                raise
            raise StoreUnavailable("--jobs-files does not do it: the bucket or folder is gone") from None

    async def fetch(self, file_id: str, path: Path) -> None:
        """Copies the object into a file that appears when it is whole. Raises FileNotFoundError, OSError."""
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            await self._asked(self._filesystem.get_file, self._key(file_id), str(part))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    async def read(self, file_id: str, offset: int, count: int) -> bytes:
        """A part of the object. Raises FileNotFoundError."""
        size = int(await self._asked(self._filesystem.size, self._key(file_id)))
        if offset >= size:
            return b""
        ends = {"start": offset, "end": min(offset + count, size)}
        return bytes(await self._asked(partial(self._filesystem.cat_file, self._key(file_id), **ends)))

    async def exists(self, file_id: str) -> bool:
        try:
            await self._asked(self._filesystem.info, self._key(file_id))  # `exists` says no where a store is away
        except FileNotFoundError:
            return False
        return True

    async def delete(self, file_id: str) -> None:
        """Deletes the object; nothing is said of one that is not there."""
        with contextlib.suppress(FileNotFoundError):
            await self._asked(self._filesystem.rm_file, self._key(file_id))

    def _key(self, file_id: str) -> str:
        return f"{self._root}/{file_id}"

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


class Files:
    """Everything raises what the store raises, and InvalidRequest for what a client does wrong."""

    def __init__(
        self,
        folder: Path,
        documents: DocumentStore,
        *,
        is_shared: bool = False,
        objects: Objects | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        is_shared  whether other servers upload into the folder too
        objects    where files lie once they are whole; None = in the folder
        """
        self._folder = folder
        self._is_shared = is_shared
        self._objects = objects
        self._documents = documents
        self._removed: dict[str, Document] = {}  # those whose bytes may be in the object store
        self._removal_waits = asyncio.Event()
        self._clock = clock
        self._uploads: dict[str, _Upload] = {}
        self._beginning = asyncio.Lock()  # so that no more are begun than may be

    async def open(self) -> None:
        """Make the folder, and remove uploads that a process before this one did not end."""
        if not await asyncio.to_thread(self._folder.is_dir):
            if await self._documents.in_state(KIND, _READY, limit=1):
                logger.error(
                    "--jobs: the folder of files is away: uploads and downloads get 503, and batches wait. Put %s "
                    "back; if its files are lost, make it anew",
                    self._folder,
                )
                return
            self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._is_shared:
            return await self._drop_left()
        for document in await self._documents.in_state(KIND, _UPLOADING, limit=_MAX_LEFT):
            await self.remove(document)

    def path(self, file_id: str) -> Path:
        """The path where it is written."""
        return self._folder / file_id

    async def local(self, file_id: str, name: str) -> Path:
        """A file of this folder with its content, under `name` if it lies elsewhere. Raises FileNotFoundError."""
        path = self.path(name if self._objects is not None else file_id)
        if self._objects is not None and not path.exists():
            await self._objects.fetch(file_id, path)
        return path

    async def exists(self, file_id: str) -> bool:
        """Whether its bytes are anywhere."""
        if self._objects is not None and await self._objects.exists(file_id):
            return True
        return self.path(file_id).exists()

    async def begin(self, owner: str, filename: str, purpose: str, most: int) -> str:
        """A file of at most `most` bytes, which would find room now; its id. Raises StoreFull, OSError."""
        async with self._beginning:
            await self._drop_idle()
            await self._drop_left()
            self._check_number(owner)
            info = FileInfo(new_id("file"), 0, int(self._clock()), filename, purpose)
            document = _document(owner, info, _UPLOADING, held_bytes=0)
            await self._documents.put(document, needs=most or None)
            try:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
                descriptor = await asyncio.to_thread(os.open, self.path(info.id), flags, 0o600)
            except OSError:
                await self.remove(document)
                raise
            self._uploads[info.id] = _Upload(document, info, descriptor, most, time.monotonic())
        return info.id

    def _check_number(self, owner: str) -> None:
        """Raises StoreFull where as many uploads as may be are under way, of one owner or of all."""
        num_of_owner = sum(upload.document.owner == owner for upload in self._uploads.values())
        if num_of_owner >= _MAX_UPLOADS_OF_OWNER or (num_of_owner and len(self._uploads) >= _MAX_UPLOADS):
            raise StoreFull(f"{num_of_owner} uploads of this API key are under way, as many as may be")

    async def append(self, owner: str, file_id: str, chunk: memoryview) -> None:
        """Raises InvalidRequest, and OSError where the disk is full."""
        async with self._upload(owner, file_id) as upload:
            if upload.size + len(chunk) > upload.most:
                raise InvalidRequest("the file has more bytes than were announced", param="file")
            upload.seen_at = time.monotonic()
            await self._reserve(upload, upload.size + len(chunk))
            upload.size += len(chunk)
            await asyncio.to_thread(_write_all, upload.descriptor, chunk)

    async def _reserve(self, upload: _Upload, needed: int) -> None:
        """Room for so many bytes, and where there is some, for what comes next. StoreFull."""
        if needed <= upload.document.held_bytes:
            return
        for size in (min(upload.most, needed + _AHEAD_BYTES), needed):
            try:
                if not await self._documents.replace(replace(upload.document, held_bytes=size)):
                    raise InvalidRequest(_UNKNOWN, param="file")
                upload.document = replace(upload.document, held_bytes=size, version=upload.document.version + 1)
                return
            except StoreFull:
                if size == needed:
                    raise

    async def end(self, owner: str, file_id: str) -> FileInfo:
        """Ends the upload when all bytes have come: the file is there from now on. Raises InvalidRequest, OSError."""
        async with self._upload(owner, file_id) as upload:
            await asyncio.to_thread(os.fsync, upload.descriptor)
            await asyncio.to_thread(sync_folder, self._folder)
            if self._objects is not None:
                await self._objects.put(self.path(file_id), file_id)
            info = msgspec.structs.replace(upload.info, bytes=upload.size)
            is_kept = await self._documents.replace(
                replace(upload.document, state=_READY, content=msgspec.json.encode(info), held_bytes=upload.size)
            )
            self._close(file_id)
            self.remove_copy(file_id)
            if not is_kept:  # it was idle for so long that another server removed it
                raise InvalidRequest(_UNKNOWN, param="file")
        return info

    async def abandon(self, owner: str, file_id: str) -> None:
        """An upload ends without a file."""
        async with self._upload(owner, file_id) as upload:
            self._close(file_id)
            await self.remove(upload.document)

    async def keep(self, owner: str, file_id: str, filename: str) -> None:
        """A file that lies in the folder already, as a batch's output, is seen from now on. Then `remove_copy`.

        Its room is held by the document of the batch.
        """
        size = (await asyncio.to_thread(self.path(file_id).stat)).st_size
        if self._objects is not None:
            await self._objects.put(self.path(file_id), file_id)
        info = FileInfo(file_id, size, int(self._clock()), filename, "batch_output")
        if await self._documents.get(owner, KIND, file_id) is None:  # not put before a crash
            await self._documents.put(_document(owner, info, _READY, held_bytes=size), needs=0)

    async def info(self, owner: str, file_id: str) -> FileInfo | None:
        document = await self._documents.get(owner, KIND, file_id)
        return _info(document) if document is not None and document.state == _READY else None

    async def newest(self, owner: str, *, after: str | None, limit: int) -> list[FileInfo]:
        """An owner's files behind `after`, the newest first. Raises InvalidRequest where `after` is no file."""
        if after is not None and await self._documents.get(owner, KIND, after) is None:
            raise InvalidRequest("after is not the id of a file", param="after")
        found: list[FileInfo] = []
        while len(found) < limit:
            page = await self._documents.newest(owner, KIND, after=after, limit=limit)
            found += [_info(document) for document in page if document.state == _READY]
            if len(page) < limit:
                break
            after = page[-1].document_id  # some of this page are still being uploaded
        return found[:limit]

    async def read(self, owner: str, file_id: str, offset: int, count: int) -> bytes | None:
        """Returns None where there is no such file. Raises OSError where its bytes are gone."""
        if await self.info(owner, file_id) is None:
            return None
        try:
            if self._objects is not None:
                return await self._objects.read(file_id, offset, count)
            return await asyncio.to_thread(read_at, self.path(file_id), offset, min(count, PIECE_BYTES))
        except FileNotFoundError:
            if await self.info(owner, file_id) is None:  # another server has deleted it meanwhile
                return None
            raise

    async def hide(self, owner: str, file_id: str) -> Document | None:
        """Hides the file: no client sees it from now on, and it may be removed; None where there is no such file.

        `Batches` sees to it that no batch needs it.
        """
        document = await self._documents.get(owner, KIND, file_id)
        if document is None or document.state != _READY:
            return None
        hidden = replace(document, state=_UPLOADING)
        return hidden if await self._documents.replace(hidden) else None

    async def remove(self, document: Document) -> None:
        """Removes a file whose state is one that no client sees: its bytes, then its document.

        Bytes that an object store does not give up now are asked for again later, so that nobody waits for a store
        that is away, and nothing stays in it. Raises OSError, and what the store of documents raises.
        """
        await asyncio.to_thread(self._remove_bytes, document.document_id)
        self._removed[document.document_id] = document
        try:
            async with asyncio.timeout(AT_ONCE_SECONDS if self._objects is not None else None):
                await self._finish(document)
        except (TimeoutError, StoreError):
            if self._objects is None:
                raise
            self._removal_waits.set()

    def _remove_bytes(self, document_id: str) -> None:
        (self._folder / document_id).unlink(missing_ok=True)
        self._folder.stat()  # where all of it is away, its bytes would come back

    async def run(self) -> None:
        """Removes what an object store has not given up yet, whenever there is something. Until cancelled."""
        while True:
            self._removal_waits.clear()
            with contextlib.suppress(StoreError):
                for document in list(self._removed.values()):
                    await self._finish(document)
            if self._removed:
                await asyncio.sleep(RETRY_PAUSE)
            else:
                await self._removal_waits.wait()

    async def _finish(self, document: Document) -> None:
        """The bytes go first: a document without them is removed again, bytes without one would stay for ever."""
        if self._objects is not None:
            await self._objects.delete(document.document_id)
        await self._documents.delete(document.owner, document.kind, document.document_id)
        self._removed.pop(document.document_id, None)

    @contextlib.asynccontextmanager
    async def _upload(self, owner: str, file_id: str) -> AsyncIterator[_Upload]:
        """The upload, with which nobody else does anything meanwhile. Raises InvalidRequest."""
        upload = self._uploads.get(file_id)
        if upload is None or upload.document.owner != owner:
            raise InvalidRequest(_UNKNOWN, param="file")
        async with upload.busy:
            if file_id not in self._uploads:  # it has ended meanwhile
                raise InvalidRequest(_UNKNOWN, param="file")
            yield upload

    async def _drop_idle(self) -> None:
        oldest = time.monotonic() - _IDLE_SECONDS
        for file_id, upload in list(self._uploads.items()):
            if file_id in self._uploads and upload.seen_at < oldest and not upload.busy.locked():
                self._close(file_id)
                await self.remove(upload.document)

    async def _drop_left(self) -> None:
        """Drops uploads of servers that have died, or whose object store was away: a living server would have dropped
        them."""
        for document in await self._documents.in_state(KIND, _UPLOADING, limit=_MAX_LEFT):
            written = await asyncio.to_thread(_written_at, self.path(document.document_id))
            newest = max(document.created_at, written)
            is_ours = document.document_id in self._uploads or document.document_id in self._removed
            is_left = not is_ours and newest < self._clock() - 2 * _IDLE_SECONDS
            if is_left and await self._documents.replace(document):  # so it can't end any more
                await self.remove(document)

    def remove_copy(self, file_id: str) -> None:
        """Removes the copy here of a file that lies elsewhere now."""
        if self._objects is not None:
            self.path(file_id).unlink(missing_ok=True)

    def _close(self, file_id: str) -> None:
        os.close(self._uploads.pop(file_id).descriptor)


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _document(owner: str, info: FileInfo, state: str, *, held_bytes: int) -> Document:
    content = msgspec.json.encode(info)
    return Document(KIND, info.id, owner, state, content, created_at=info.created_at, held_bytes=held_bytes)


def _info(document: Document) -> FileInfo:
    return msgspec.json.decode(document.content, type=FileInfo)


def _written_at(path: Path) -> float:
    """Unix seconds; 0 where there is no file. Blocking."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def read_at(path: Path, offset: int, count: int) -> bytes:
    """Reads at most so many bytes from there on. Blocking."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, count, offset)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, chunk: memoryview) -> None:
    """Write all, however often the kernel has to be asked. Blocking."""
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]
