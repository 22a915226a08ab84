"""OUT: the place where the files of a job are, and the manifest that says which job they are of.

The place is a folder of this machine, or an object store through fsspec: s3://, gs://, az://, hf:// and whatever else
it knows. A file there is whole or not at all.
"""

import contextlib
import io
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import fsspec

from server.features.backfill import plan
from server.features.backfill.errors import BackfillError, RefusedJob, in_words
from server.features.backfill.locations import check_no_secrets, local_path
from server.features.backfill.plan import Plan
from wire.files import lock, sync_folder

MANIFEST = "manifest.json"
_UNFINISHED = ".tmp"
_NOT_ONE = re.compile(r":{2}|[?]")  # a chain of fsspec's, or a query


class Files(Protocol):
    """Files by their names, without folders. Several threads may use it at a time."""

    @property
    def where(self) -> str:
        """The place in words, without secrets."""

    def claim(self, worker: str) -> None:
        """Take the place, once, before the first `new_file`. Raises RefusedJob where the place has other files than a
        job's, can't be written to, or is being written by another process of the same worker, as far as that can be
        known."""

    def names(self) -> set[str]:
        """The names as they are now; empty where the place is not there. Raises BackfillError."""

    def read(self, name: str) -> BinaryIO:
        """The file, for `with`, to be read from any place on. Raises OSError where it is not there, and BackfillError,
        now or as it is read, where the place can't be reached."""

    def new_file(self, name: str, *, only_new: bool = False) -> AbstractContextManager[BinaryIO]:
        """A file that appears under its name when the block ends, whole or not at all, and outlives what the place
        outlives. `only_new`: not where there is one, as far as the place can tell. Raises BackfillError."""

    def close(self) -> object:
        """Let another process write there."""


def files_at(location: str) -> Files:
    """The files at the place; nothing is written yet. Raises RefusedJob."""
    path = local_path(location)
    if path is not None:
        return Folder(path)
    check_no_secrets(location, "OUT")
    if _NOT_ONE.search(location):
        raise RefusedJob("OUT must be one URL without a query: how a store is reached is said by the environment")
    return Objects(location)


class Folder:
    """A folder of this machine, or mounted. Another process of the same worker is refused while this one lives."""

    def __init__(self, path: Path) -> None:
        self.close: Callable[[], object] = lambda: None
        self._path = path.absolute()
        self._worker = ""

    @property
    def where(self) -> str:
        return str(self._path)

    def claim(self, worker: str) -> None:
        """Makes the folder, locks it, and removes what a killed process of this worker left. See Files."""
        self._worker = worker
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            others = [name for name in os.listdir(self._path) if not name.startswith(".")]
            if others and MANIFEST not in others and not all(name.endswith(_UNFINISHED) for name in others):
                raise RefusedJob("OUT has files and no manifest of a job: take a new folder")
            file = self._path / f".lock-{worker}"
            try:
                self.close = weakref.finalize(self, _let_go, file, lock(file, mode=0o666))
            except FileNotFoundError:
                raise BlockingIOError from None  # a process that just ended has removed it
            for left in self._path.glob(f"*.{worker}{_UNFINISHED}"):
                left.unlink()
        except BlockingIOError:
            raise RefusedJob("OUT is being written by another process, as the same worker") from None
        except OSError as error:
            raise RefusedJob(f"OUT can't be written to: {error.strerror}") from None

    def names(self) -> set[str]:
        try:
            return set(os.listdir(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            raise BackfillError(f"{self._path} can't be read: {error.strerror}") from None

    def read(self, name: str) -> BinaryIO:
        return (self._path / name).open("rb")

    @contextlib.contextmanager
    def new_file(self, name: str, *, only_new: bool = False) -> Iterator[BinaryIO]:
        """It outlives a power cut. `only_new` is not known here: mounted folders rename, and some do no more."""
        unfinished = self._path / f"{name}.{self._worker}{_UNFINISHED}"
        try:
            try:
                with unfinished.open("wb") as stream:
                    yield stream
                    stream.flush()
                    os.fsync(stream.fileno())
                unfinished.rename(self._path / name)
                sync_folder(self._path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise BackfillError(f"{self._path / name} can't be written: {error.strerror or error}") from None


def _let_go(path: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink()  # while it is locked, so that it is nobody else's
    os.close(descriptor)


class Objects:
    """Objects of a store whose names begin with one prefix, and a slash.

    A file is made in the temporary folder and put whole, in one request where it is of a part's size. Nothing is
    renamed and nothing locked: that a part is done is said by its last bytes, so a store that shows halves of files
    does no harm.
    """

    def __init__(self, url: str) -> None:
        """`url`: without secrets. Raises RefusedJob where its file system is not installed, or the URL is no good."""
        self.where = url.rstrip("/")
        try:
            self._filesystem, root = fsspec.core.url_to_fs(url)
        except Exception as error:
            raise RefusedJob(f"OUT can't be opened: {in_words(error)}") from None
        self._root = str(root).rstrip("/")

    def claim(self, worker: str) -> None:
        """Two processes of one worker are not told apart: they write the same parts."""
        try:
            others = self.names()
        except BackfillError as error:
            raise RefusedJob(f"OUT: {error}") from None
        if others and MANIFEST not in others:
            raise RefusedJob("OUT has files and no manifest of a job: take a new prefix")

    def names(self) -> set[str]:
        self._filesystem.invalidate_cache()
        try:
            found = self._asked("read", "", self._filesystem.ls, self._root, detail=False)
        except FileNotFoundError:
            return set()
        paths = {str(path).rstrip("/") for path in found}
        return {path.rpartition("/")[2] for path in paths if path != self._root}  # it may be an object itself

    def read(self, name: str) -> BinaryIO:
        path = f"{self._root}/{name}"
        size = self._asked("read", name, self._filesystem.info, path)["size"]

        def fetch(start: int, stop: int) -> bytes:
            found: bytes = self._asked("read", name, self._filesystem.cat_file, path, start=start, end=stop)
            return found

        return cast(BinaryIO, _Ranges(fetch, size))

    @contextlib.contextmanager
    def new_file(self, name: str, *, only_new: bool = False) -> Iterator[BinaryIO]:
        """Takes as much of the temporary folder meanwhile."""
        try:
            stream = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed below
        except OSError as error:
            raise BackfillError(f"the temporary folder can't be written: {in_words(error)}") from None
        with stream:
            try:
                yield cast(BinaryIO, stream)
                stream.flush()
            except OSError as error:
                raise BackfillError(f"the temporary folder can't be written: {in_words(error)}") from None
            # It has no name, so that nothing of it is left by a kill.
            own, mode = f"/proc/self/fd/{stream.fileno()}", "create" if only_new else "overwrite"
            try:
                self._asked("written", name, self._filesystem.put_file, own, f"{self._root}/{name}", mode=mode)
            except FileNotFoundError as error:
                raise BackfillError(f"{self.where}/{name} can't be written: {in_words(error)}") from None

    def close(self) -> None:
        pass

    def _asked(self, done: str, name: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What the store answers. Raises FileNotFoundError as it is; libraries have errors of their own."""
        try:
            return ask(*arguments, **options)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise BackfillError(f"{f'{self.where}/{name}'.rstrip('/')} can't be {done}: {in_words(error)}") from None


class _Ranges(io.RawIOBase):
    """An object, of which only what is asked for is fetched."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch, self._size, self._at = fetch, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        found = self._fetch(self._at, stop)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def readall(self) -> bytes:
        found = self._fetch(self._at, self._size) if self._at < self._size else b""
        self._at += len(found)
        return found


def read_manifest(files: Files) -> Plan | None:
    """Returns None where no job has begun. Raises RefusedJob where it is none, or may not be read, and BackfillError
    where the place can't be reached."""
    try:
        with files.read(MANIFEST) as stream:
            return plan.from_json(stream.read().decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedJob(f"the manifest of OUT can't be read: {error}") from None


def begin_manifest(files: Files, job: Plan) -> None:
    """Write it, unless another worker has. Raises BackfillError, and RefusedJob for another job's OUT."""
    for only_new in (True, False):  # not every store knows the first
        found = read_manifest(files)
        if found is not None:
            break
        try:
            with files.new_file(MANIFEST, only_new=only_new) as stream:
                stream.write(job.as_json().encode())
        except BackfillError:
            if not only_new:
                raise
    found = found or read_manifest(files)
    if found is None:
        raise BackfillError(f"{files.where}/{MANIFEST} is not there, though it was written")
    found.check_same(job)


def check_manifest(files: Files, job: Plan) -> None:
    """Raises BackfillError where it is no longer this job's: two jobs began at once, where nothing locks."""
    try:
        found = read_manifest(files)
    except RefusedJob as error:
        raise BackfillError(str(error)) from None
    if found is None or found.job != job.job:
        raise BackfillError("another job has begun in OUT meanwhile")
