"""A folder as the place of a job's files: its lock, and files that are there whole or not at all."""

import contextlib
import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from server.backfill.errors import BackfillError, RefusedJob
from server.backfill.out.manifest import MANIFEST

_LOCK = ".lock"
_UNFINISHED = ".tmp"


class Folder:
    """Of this machine, or mounted. Another process of the same worker is refused while this one lives."""

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
            self.close = self._locked(self._path / f"{_LOCK}-{worker}")
            for left in self._path.glob(f"*.{worker}{_UNFINISHED}"):
                left.unlink()
        except BlockingIOError:
            raise RefusedJob("OUT is being written by another process, as the same worker") from None
        except OSError as error:
            raise RefusedJob(f"OUT can't be written to: {error.strerror}") from None

    def _locked(self, path: Path) -> Callable[[], object]:
        """Make the file and lock it; what lets go and removes it. Raises BlockingIOError where another process has it,
        and OSError."""
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(lock).st_nlink:
                raise BlockingIOError  # a process that just ended has removed it
        except BaseException:
            os.close(lock)
            raise
        return weakref.finalize(self, _let_go, path, lock)

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
                self._sync()
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise BackfillError(f"{self._path / name} can't be written: {error.strerror or error}") from None

    def _sync(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _let_go(path: Path, lock: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink()  # while it is locked, so that it is nobody else's
    os.close(lock)
