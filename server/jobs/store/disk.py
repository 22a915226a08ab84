"""Calls to a disk that block: run them in a thread."""

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


class DiskWait:
    """How long a call of the disk has taken that has not ended: where a mount is lost it may never."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = math.inf  # when it should have ended

    @contextlib.contextmanager
    def asked(self, seconds: float = 0.0) -> Iterator[None]:
        """Around one call, for which so many seconds are usual."""
        self._until = self._clock() + seconds
        try:
            yield
        finally:
            self._until = math.inf

    def has_hung_for(self, seconds: float) -> bool:
        return self._clock() > self._until + seconds


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk, so that they outlive a loss of power."""
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def written_at(path: Path) -> float:
    """Unix seconds; 0 where there is no file."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def room_beside(database: Path) -> int:
    """Bytes that the disk takes before the log of an SQLite file, its WAL, finds no room in that file."""
    disk = os.statvfs(database.parent)
    log = Path(f"{database}-wal")
    return disk.f_bavail * disk.f_frsize - (log.stat().st_size if log.exists() else 0)


def read_at(path: Path, offset: int, count: int) -> bytes:
    """At most so many bytes from there on."""
    with _opened(path, os.O_RDONLY) as descriptor:
        return os.pread(descriptor, count, offset)


def write_all(descriptor: int, chunk: memoryview) -> None:
    """However often the kernel has to be asked."""
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
