"""Where a running server waits for its successor: a Unix socket in a folder of this user, named by address and port."""

import os
import stat
from pathlib import Path

from server.supervisor.socket_folder import runtime_folder

_MAX_PATH_BYTES = 107  # of a Unix socket


class NoPlace(Exception):
    """There is no such place that is safe; one line that says why."""


def place(host: str, port: int) -> Path:
    """The path of the socket. Makes its folder (0700) where there is none. Raises NoPlace."""
    folder = runtime_folder() / f"embedline_takeover-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise NoPlace(f"can't make the folder {folder}: {error.strerror}") from None
    # in /tmp anybody could have made it
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise NoPlace(f"{folder} is not a folder of this user alone (mode 0700)")
    path = folder / f"{host}-{port}.sock"
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise NoPlace(f"the path {path} is too long for a socket")
    return path
