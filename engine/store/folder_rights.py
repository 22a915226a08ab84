"""Who may write into a folder, and what to do where this process may not write or read. Knows no folder's content."""

import errno
import os
import stat
from pathlib import Path

_AS_THE_OWNER = "run it as the folder's owner (docker run --user $(id -u):$(id -g))"


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
    """The same where this process may not read a folder. Files that are only read may belong to another user."""
    return f"; this process is user {_user()}: let it read all of the folder (chmod -R a+rX), or {_AS_THE_OWNER}"


def _user() -> str:
    return f"{os.geteuid()}:{os.getegid()}"
