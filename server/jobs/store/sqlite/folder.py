"""The folder of the store: for its owner alone, and for one process at a time."""

import fcntl
import os
import stat
from pathlib import Path

from server.jobs.store.errors import StoreUnusable

LOCK = "lock"


class StoreFolder:
    """Made and locked when constructed, unlocked by `close`; the kernel unlocks it when the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _make_private(path)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreUnusable(f"{path} can't be used for jobs: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StoreUnusable(f"{path} is in use by another server; give each its own folder") from error

    def close(self) -> None:
        os.close(self._lock)


def _make_private(path: Path) -> None:
    """An empty folder is made private; one that has something in it may be meant for others and is refused."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not stat.S_IMODE(path.stat().st_mode) & 0o077:
        return
    if any(path.iterdir()):
        raise StoreUnusable(f"{path} can be read by others; if it is for jobs alone, run chmod 700 {path}")
    path.chmod(0o700)
