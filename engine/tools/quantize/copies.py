"""The copies in the cache: where each lies, which process may work on it, which may go. Knows no file of theirs.

Of each key there are:

    KEY.lock      locked by whoever looks at the copy, makes it or removes it; its time is that of the last use
    KEY           the copy; locked, shared, by every process that uses it, until that process ends
    KEY.partial   what is unfinished of it (see engine.tools.quantize.job)

The locks are the kernel's (flock), so none outlives the process that holds it, however that ends, and whoever waits is
woken. Files of locks stay when copies go: were one made anew, two processes could hold locks of the same name.
"""

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from engine.store.cache import check_owner

logger = logging.getLogger("embedline.engine")

_LOCK, _PARTIAL = ".lock", ".partial"


class Copies:
    """Those in one folder, which is made if need be."""

    def __init__(self, root: Path) -> None:
        """Raises OSError where the folder can't be used: also where others could have written into it."""
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(root)
        self.root = root

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[Path]:
        """The path of the copy, there or not. Other processes that ask for it wait. Raises OSError."""
        with self._locked(key) as descriptor:
            os.utime(descriptor)
            yield self.root / key

    def partial(self, key: str) -> Path:
        """Where what is unfinished lies; there or not."""
        return self.root / f"{key}{_PARTIAL}"

    def use(self, key: str) -> None:
        """Keep others from removing the copy as long as this process lives. Only for who holds it by `alone`, and has
        nothing unfinished any more."""
        descriptor = os.open(self.root / key, os.O_RDONLY | os.O_DIRECTORY)  # never closed: so long is the lock held
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        shutil.rmtree(self.partial(key), ignore_errors=True)  # whoever made it was killed before it was tidied up

    def discard(self, key: str) -> None:
        """Remove a copy and what is unfinished of it. Only for who holds it by `alone`."""
        for folder in (self.root / key, self.partial(key)):
            if folder.exists():
                shutil.rmtree(folder)

    def prune(self, key: str, *, max_others: int) -> None:
        """Of the other keys, leave those used last, and what is in use."""
        locks = [file for file in self.root.glob(f"*{_LOCK}") if file.stem != key]
        with contextlib.suppress(OSError):
            locks.sort(key=lambda file: file.stat().st_mtime_ns, reverse=True)
            for lock in locks[max_others:]:
                self._discard_unused(lock.stem)

    def _discard_unused(self, key: str) -> None:
        with contextlib.suppress(OSError), self._locked(key, waits=False), contextlib.ExitStack() as stack:
            if (self.root / key).is_dir():
                stack.enter_context(_flocked(self.root / key, os.O_RDONLY, waits=False))
            self.discard(key)

    @contextlib.contextmanager
    def _locked(self, key: str, *, waits: bool = True) -> Iterator[int]:
        """Raises BlockingIOError, another OSError where there are no locks."""
        file = self.root / f"{key}{_LOCK}"
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(_flocked(file, os.O_RDWR | os.O_CREAT, waits=False))
            except BlockingIOError:
                if not waits:
                    raise
                logger.info("another process is at work on the FP8 copy in %s: waiting for it", self.root / key)
                descriptor = stack.enter_context(_flocked(file, os.O_RDWR | os.O_CREAT, waits=True))
            yield descriptor


@contextlib.contextmanager
def _flocked(path: Path, flags: int, *, waits: bool) -> Iterator[int]:
    """The descriptor of a file or folder that nobody else has locked."""
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)
