"""Files of clients and of batches: bytes in a folder, what is known of them in the store.

The room of an upload is reserved as its bytes come, each step before it is written. A file is seen once all of it is on
the disk; what an upload left that never ended is removed.
"""

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from server.features.jobs.disk import read_at, sync_folder, write_all, written_at
from server.features.jobs.messages import PIECE_BYTES
from server.features.jobs.objects import Objects, Removal
from server.features.jobs.store.store import DocumentStore, StoreFull
from server.features.jobs.types import Document
from server.requests.errors import InvalidRequest

KIND = "file"
_UPLOADING, _READY = "uploading", "ready"  # uploading: or being removed
_IDLE_SECONDS = 600.0  # of an upload; then its frontend has died
_MAX_UPLOADS_OF_OWNER = 64  # at a time
_MAX_UPLOADS = 512  # of all; but one of each owner always
_MAX_LEFT = 1000  # of other servers or processes that are looked at
_AHEAD_BYTES = 4 << 20  # reserved beside what has come
_UNKNOWN = "this upload is not known, or not any more"


logger = logging.getLogger("embedline.jobs")


class FileInfo(msgspec.Struct, frozen=True):
    """What clients see of a file, in OpenAI's words."""

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
        self.removal = Removal(folder, documents, objects)
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
            await self.removal.remove(document)

    def path(self, file_id: str) -> Path:
        """Where it is written."""
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
                await self.removal.remove(document)
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
            await asyncio.to_thread(write_all, upload.descriptor, chunk)

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
        """All bytes have come: the file is there from now on. Raises InvalidRequest, OSError."""
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
            await self.removal.remove(upload.document)

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
        """Raises InvalidRequest where `after` is no file."""
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
        """None where there is no such file. Raises OSError where its bytes are gone."""
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
        """No client sees it from now on, and `removal` may remove it; None where there is no such file.

        `Batches` sees to it that no batch needs it.
        """
        document = await self._documents.get(owner, KIND, file_id)
        if document is None or document.state != _READY:
            return None
        hidden = replace(document, state=_UPLOADING)
        return hidden if await self._documents.replace(hidden) else None

    @contextlib.asynccontextmanager
    async def _upload(self, owner: str, file_id: str) -> AsyncIterator[_Upload]:
        """Alone with it. Raises InvalidRequest."""
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
                await self.removal.remove(upload.document)

    async def _drop_left(self) -> None:
        """Those of servers that have died, or whose object store was away: a living server would have dropped them."""
        for document in await self._documents.in_state(KIND, _UPLOADING, limit=_MAX_LEFT):
            written = await asyncio.to_thread(written_at, self.path(document.document_id))
            newest = max(document.created_at, written)
            is_ours = document.document_id in self._uploads or self.removal.has(document.document_id)
            is_left = not is_ours and newest < self._clock() - 2 * _IDLE_SECONDS
            if is_left and await self._documents.replace(document):  # so it can't end any more
                await self.removal.remove(document)

    def remove_copy(self, file_id: str) -> None:
        """Of a file that lies elsewhere now."""
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
