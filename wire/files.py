"""Files and folders that other processes and users may use too: who may write there, who has locked what, and what is
on the disk. Knows no content.

Locks are the kernel's (flock): none outlives its process.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

MADE, FOLDER = os.O_CREAT | os.O_RDWR, os.O_RDONLY | os.O_DIRECTORY  # how a file or a folder is opened to be locked
MAX_WHOLE_BYTES = 1 << 28  # of a file that is read whole; the largest tokenizers take a tenth of it
_AS_THE_OWNER = "run it as the folder's owner (docker run --user $(id -u):$(id -g))"


class TooLargeError(ValueError):
    """A file has more bytes than are read. The message says how many are."""


class ReadByOthersError(Exception):
    """A folder has something in it, and other users may read it."""


def read_whole(file: Path) -> bytes:
    """The bytes of a file that somebody else may have written. Raises OSError and TooLargeError."""
    if file.stat().st_size > MAX_WHOLE_BYTES:
        raise TooLargeError(f"at most {MAX_WHOLE_BYTES >> 20} MiB are read")
    return file.read_bytes()


def make_private(folder: Path) -> None:
    """Make a folder for this user alone, or of an empty one. Raises OSError, and ReadByOthersError for any other: it
    may be meant for them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        if any(folder.iterdir()):
            raise ReadByOthersError
        folder.chmod(0o700)


def lock(path: Path, flags: int = MADE, *, mode: int = 0o600, is_shared: bool = False, waits: bool = False) -> int:
    """A descriptor; the file or folder is locked until it is closed.

    Raises BlockingIOError where another process has locked it and this one does not wait, FileNotFoundError where it
    was removed meanwhile, and other OSErrors.
    """
    descriptor = os.open(path, flags, mode)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))
        path.stat()
        if not flags & os.O_DIRECTORY and not os.fstat(descriptor).st_nlink:  # not every disk counts links of folders
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def locked(path: Path, flags: int = MADE) -> Iterator[None]:
    """Hold the lock for the time of a block; nobody is waited for."""
    descriptor = lock(path, flags)
    try:
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk, so that they outlive a loss of power."""
    descriptor = os.open(folder, FOLDER)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_owner(folder: Path) -> None:
    """Raises OSError where others than this user and root can write into it, or can have done so."""
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError("it belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("its group or everybody may write into it")


def remedy(error: OSError) -> str:
    """The end of a message: "; " and what to do, or "" where the error has another reason than rights."""
    if error.errno == errno.EROFS:
        return "; it is mounted read-only: mount a volume there"
    if error.errno not in (errno.EACCES, errno.EPERM):
        return ""
    user = _user()
    return f"; this process is user {user}: make the folder its own (chown -R {user}), or {_AS_THE_OWNER}"


def remedy_of_reading() -> str:
    """A remedy where this process may not read a folder. Files that are only read may belong to another user."""
    return f"; this process is user {_user()}: let it read all of the folder (chmod -R a+rX), or {_AS_THE_OWNER}"


def _user() -> str:
    return f"{os.geteuid()}:{os.getegid()}"
