"""Copies of models in the cache: each is made by one process and used by several. Knows no content.

Their folder, the root, holds:

    KEY.lock     locked by the process that looks for this copy, makes it or removes it; others wait. Processes that may
                 only read the root share it
    KEY          a copy; locked, shared, by each process that uses it, until it ends
    KEY.partial  unfinished work; removed by the next process that has the lock

The locks are the kernel's (flock): no lock outlives its process.
"""

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from engine.machine.failures import one_line
from wire import files

logger = logging.getLogger("embedline.engine")

PARTIAL = ".partial"  # behind the name of a copy: unfinished work on it
_LOCK = ".lock"


def made_once(
    copy: Path, what: str, *, check: Callable[[], object], make: Callable[[], None] | None, most_others: int
) -> bool:
    """Whether there is the copy. One process makes it while others wait; if it is killed, the next one starts again.
    The copy is not removed while this process lives.

    what: its name in the log; check: raises an error where it is not as it was made; make: None = none is made;
    most_others: copies of other models that stay. Raises OSError, and what `make` raises.
    """
    _open_root(copy.parent)
    with locked(copy, what):
        if _is_good(copy, what, check):
            logger.info("found %s in %s", what, copy)
        elif make is None:
            return False
        else:
            _make_way(copy, most_others=most_others)
            with _of_this_user_alone():
                make()
        use(copy)
    return True


def _is_good(copy: Path, what: str, check: Callable[[], object]) -> bool:
    """Warns of a copy that can't be used."""
    try:
        if copy.is_dir():
            files.check_owner(copy)
            check()
            return True
    except Exception as error:  # a damaged file can cause any error
        logger.warning("%s in %s can't be used: %s", what, copy, one_line(error))
    return False


def _open_root(root: Path) -> None:
    """Make the root if it is not there, and remove what killed processes left in it. Raises OSError where this can't be
    done, or other users may write into it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.check_owner(root)
    for folder in root.glob(f"*{PARTIAL}"):
        with contextlib.suppress(OSError):
            _remove_unused(folder)


@contextlib.contextmanager
def locked(copy: Path, what: str) -> Iterator[None]:
    """No other process makes the copy or removes it meanwhile, nor looks for it if this one may make it. `what` is what
    the log calls it. Raises OSError where there are no locks.

    A copy in a root that may only be read can't be made anew. So those who look share the lock; where there is no lock
    file, the copy was put there by hand, and no process makes it.
    """
    only_looks = copy.is_dir() and not os.access(copy.parent, os.W_OK)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(_lock_file(copy).open("rb" if only_looks else "ab"))
        except FileNotFoundError:
            if not only_looks:
                raise
        else:
            _wait_for(file, fcntl.LOCK_SH if only_looks else fcntl.LOCK_EX, what, copy)
        yield


def _wait_for(lock: BinaryIO, kind: int, what: str, copy: Path) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another process is at work on %s in %s: waiting for it", what, copy)
        fcntl.flock(lock, kind)


def unfinished(copy: Path) -> Path:
    """The folder in which a copy is made, before it is renamed."""
    return copy.with_name(copy.name + PARTIAL)


def use(copy: Path) -> None:
    """Keep other processes from removing the copy while this process lives. Raises OSError."""
    descriptor = lock(copy)  # never closed: the lock lasts as long
    with contextlib.suppress(OSError):  # a folder of root can be read, not touched
        os.utime(descriptor)  # the time of the last use, for make_way


def lock(folder: Path) -> int:
    """The descriptor that keeps other processes from removing the folder until it is closed. Raises OSError,
    FileNotFoundError if another process has removed it meanwhile."""
    return files.lock(folder, files.FOLDER, is_shared=True, waits=True)


def remove_if_unused(folder: Path) -> None:
    """Raises BlockingIOError where a process uses it, and other OSErrors."""
    with files.locked(folder, files.FOLDER):
        shutil.rmtree(folder)


def _make_way(copy: Path, *, most_others: int) -> None:
    """Remove a copy that can't be used, unfinished work on it, and old copies that no process uses, but for the newest
    `most_others`. Raises OSError."""
    for useless in (copy, unfinished(copy)):
        if useless.exists():
            shutil.rmtree(useless)
    others = [folder for folder in copy.parent.iterdir() if folder.is_dir() and folder.suffix != PARTIAL]
    others.sort(key=last_use, reverse=True)
    for other in others[most_others:]:
        with contextlib.suppress(OSError):
            _remove_unused(other)


def last_use(folder: Path) -> int:
    """When `use` was last called for the copy, as the file system's time of it."""
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:  # another process makes way too
        return 0


@contextlib.contextmanager
def _of_this_user_alone() -> Iterator[None]:
    """Set the umask so that the next start may use what is made (see wire.files.check_owner)."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _lock_file(copy: Path) -> Path:
    """Never removed, because another process may be waiting for its lock."""
    return copy.with_name(copy.name + _LOCK)


def _remove_unused(folder: Path) -> None:
    """Remove a copy or unfinished work. Raises BlockingIOError where a process uses it or is at work on it."""
    with files.locked(_lock_file(folder.with_suffix(""))):
        remove_if_unused(folder)
