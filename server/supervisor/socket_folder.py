"""The folder with the sockets of one running server: private to this user, removed when the server stops."""

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from server.settings.flag import SettingsError
from wire import files

_PREFIX = "embedline-"
_MAX_PATH_BYTES = 100  # a Unix socket's path has 108 at most …
_MAX_NAME_BYTES = 40  # … with the names of a server's folder and of the socket in it


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A Unix socket and its path."""

    listener: socket.socket
    path: str

    @property
    def fd(self) -> int:
        """The descriptor that a child inherits."""
        return self.listener.fileno()


class SocketFolder:
    """A folder made at start and removed at stop. What a killed server left behind is removed by the next one."""

    def __init__(self) -> None:
        """Raises SettingsError where there is no place for it."""
        try:
            self.path = _made()  # mode 0700
        except OSError as error:
            raise SettingsError(
                f"can't make a folder for sockets: {error.strerror}: set TMPDIR to a folder that can be written to "
                f"(docker run --tmpfs /tmp if the root is read-only)"
            ) from None
        self._listeners: list[socket.socket] = []
        unlocked = self.path / "lock.new"
        self._lock = files.lock(unlocked)  # as long as this process lives
        unlocked.rename(self.path / "lock")  # only now can another server's sweep see it

    def listen(self, name: str, unbound: socket.socket | None = None) -> ListeningSocket:
        """A listening Unix socket (0600), made of `unbound` where that is given. It stays open here while the process
        that serves it restarts."""
        path = str(self.path / f"{name}.sock")
        listener = unbound or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(previous)
        listener.listen(1024)
        self._listeners.append(listener)
        return ListeningSocket(listener, path)

    def remove(self) -> None:
        """Close the sockets; remove the folder and what is in it."""
        for listener in self._listeners:
            listener.close()
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


@dataclass(frozen=True, slots=True)
class FeatureSockets:
    """The sockets by which frontends and the process of a feature reach each other. They are bound and kept by the
    supervisor, so that either side may be restarted."""

    calls: ListeningSocket  # where the process takes what frontends ask of it
    http: ListeningSocket  # where frontends take its requests
    secret: str  # which it sends with them

    @staticmethod
    def listen(folder: SocketFolder, name: str) -> "FeatureSockets":
        """The sockets of one process."""
        return FeatureSockets(folder.listen(name), folder.listen(f"{name}-http"), secrets.token_hex(32))


def runtime_folder() -> Path:
    """The folder where a user's running programs keep their sockets."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    if len(os.fsencode(folder)) > _MAX_PATH_BYTES - _MAX_NAME_BYTES or not os.access(folder, os.W_OK):
        return Path("/tmp")
    return folder


def _made() -> Path:
    parent = runtime_folder()
    _sweep(parent)
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))


def _sweep(parent: Path) -> None:
    """Remove folders whose lock nobody holds."""
    for lock in parent.glob(f"{_PREFIX}*/lock"):
        with contextlib.suppress(OSError), files.locked(lock, os.O_RDWR):  # or somebody else's, or gone by now
            shutil.rmtree(lock.parent, ignore_errors=True)
