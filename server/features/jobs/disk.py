"""The folder of --jobs on the disk: private, and one server's at a time unless its requests lie in Redis."""

import asyncio
import contextlib
import errno
import os
import re
import socket
import uuid
from pathlib import Path

from server.settings.flag import SettingsError
from wire.files import ReadByOthersError, lock, make_private, sync_folder

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
CALLS_AT = "calls-at-"  # and the machine's name: a file with the path of the socket of its server's jobs process
_LOCK, _ID, _FILES_AT = "lock", "shared-id", "files-at"
_USER = re.compile("//[^/]*@")  # of a URL, with a password maybe
_LOOK_SECONDS = 0.05
_LET_GO_SECONDS = 5.0  # for a process that was killed a moment ago


class FolderTaken(SettingsError):
    """Another process has the folder."""


class Folder:
    """Held until closed, or until this process ends."""

    def __init__(self, path: str, *, is_shared: bool = False) -> None:
        """Make it where it is not there yet. Raises SettingsError, and FolderTaken where another process has it.

        is_shared  others may have it too if they share it as well
        """
        self.path = Path(path).absolute()
        try:
            make_private(self.path)
            self._lock = lock(self.path / _LOCK, is_shared=is_shared)
        except ReadByOthersError:
            raise SettingsError(
                f"--jobs: other users can read {self.path}; if it is for jobs alone, chmod 700 it"
            ) from None
        except BlockingIOError:
            raise FolderTaken("--jobs: another server uses this folder; stop it first, or choose another") from None
        except OSError as error:
            raise SettingsError(f"--jobs: the folder can't be used: {error.strerror or error}") from None

    def shared_id(self) -> str:
        """The id that tells this folder from others, wherever it is mounted: made by the first server that asks.

        Raises SettingsError.
        """
        return self._first(_ID, uuid.uuid4().hex)  # Redis keeps it too: after a loss of power they would differ

    def check_files(self, url: str | None) -> None:
        """Refuse another --jobs-files than the folder's first server had: files would not be found.

        Raises SettingsError.
        """
        given = _USER.sub("//", (url or "").rstrip("/"))  # neither kept nor shown, and a new password is no new place
        if (known := self._first(_FILES_AT, given)) != given:
            place = f"at {known}" if known else "in it"
            raise SettingsError(
                f"--jobs-files: the files of this folder of --jobs lie {place}: give the same place to each server. "
                f"To change it, stop all servers, move the files, then remove {_FILES_AT} from the folder"
            )

    def _first(self, name: str, text: str) -> str:
        """The text of a file: this one if no server has written another before. Outlives a loss of power.

        Raises SettingsError.
        """
        path = self.path / name
        try:
            if not path.exists():
                new = self.path / f"{name}.{uuid.uuid4().hex}"
                with new.open("w") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                with contextlib.suppress(FileExistsError):  # another server was quicker
                    os.link(new, path)
                new.unlink()
                sync_folder(self.path)
            return path.read_text()
        except OSError as error:
            raise SettingsError(f"--jobs: the folder can't be used: {error.strerror or error}") from None

    def note_socket(self, path: str) -> None:
        """Write down where operators ask the process that has the folder, on this machine. Raises OSError."""
        (self.path / f"{CALLS_AT}{socket.gethostname()}").write_text(path)

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._lock)


async def opened(path: str, *, waits: bool, is_shared: bool = False) -> Folder:
    """The folder once nobody else has it. Raises SettingsError.

    waits  as long as it takes; else a few seconds, which a process that was killed may need to end
    """
    loop = asyncio.get_running_loop()
    latest = loop.time() + _LET_GO_SECONDS
    while True:
        try:
            return Folder(path, is_shared=is_shared)
        except FolderTaken:
            if not waits and loop.time() > latest:
                raise
        await asyncio.sleep(_LOOK_SECONDS)  # nobody tells that a lock is free
