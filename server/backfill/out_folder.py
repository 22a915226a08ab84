"""The folder that a job writes: its lock, its manifest, and files that are there whole or not at all."""

import contextlib
import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from server.backfill import plan
from server.backfill.errors import BackfillError, RefusedJob
from server.backfill.plan import Plan

_MANIFEST = "manifest.json"
_LOCK = ".lock"
_UNFINISHED = ".tmp"


class OutFolder:
    """Of one worker. Another process of the same worker is refused while this one lives."""

    def __init__(self, path: str, *, worker: int = 0, num_workers: int = 1) -> None:
        """Makes the folder. Raises RefusedJob where it can't be written to, or has something else in it."""
        self.path = Path(path).absolute()
        self._name = f"{worker}-of-{num_workers}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            others = [name for name in os.listdir(self.path) if not name.startswith(".")]
            if others and _MANIFEST not in others and not all(name.endswith(_UNFINISHED) for name in others):
                raise RefusedJob("OUT has files and no manifest of a job: take a new folder")
            self.close = self._locked(self.path / f"{_LOCK}-{self._name}")  # another process may write then
            for left in self.path.glob(f"*.{self._name}{_UNFINISHED}"):
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

    def manifest(self) -> Plan | None:
        """Of the job that OUT has. Raises RefusedJob if it can't be read."""
        return read_manifest(self.path)

    def begin(self, job: Plan) -> None:
        """Write its manifest, unless another worker has. Raises BackfillError, and RefusedJob for another job's OUT."""
        if not (self.path / _MANIFEST).exists():
            with self.new_file(_MANIFEST) as stream:
                stream.write(job.as_json().encode())
        found = self.manifest()
        assert found is not None
        found.check_same(job)

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[BinaryIO]:
        """A file that appears under its name when the block ends, and that then outlives a power cut. Raises
        BackfillError where the disk is full or refuses; then there is nothing of it."""
        unfinished = self.path / f"{name}.{self._name}{_UNFINISHED}"
        try:
            try:
                with unfinished.open("wb") as stream:
                    yield stream
                    stream.flush()
                    os.fsync(stream.fileno())
                unfinished.rename(self.path / name)
                self._sync()
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise BackfillError(f"{self.path / name} can't be written: {error.strerror or error}") from None

    def _sync(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _let_go(path: Path, lock: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink()  # while it is locked, so that it is nobody else's
    os.close(lock)


def read_manifest(folder: Path) -> Plan | None:
    """None where no job has begun. Raises RefusedJob if it can't be read."""
    try:
        return plan.from_json((folder / _MANIFEST).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedJob(f"the manifest of OUT can't be read: {error}") from None
