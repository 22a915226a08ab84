"""A listening Unix socket at a path that clients know.

It is bound under a name of its own and then renamed. So the path always leads to a server that accepts: to this one,
or until then to the one whose place it takes.
"""

import os
import select
import socket
import stat
from pathlib import Path

from server.settings.flag import SettingsError
from wire.descriptors import peer_of

_BACKLOG = 2048
_CONNECT_SECONDS = 1.0


class UnixPort:
    """One socket, for all frontends. Its end is that of a `Listeners`."""

    kept_elsewhere = False  # a successor has a socket of its own

    def __init__(self, path: str, *, predecessor: int | None = None) -> None:
        """Listens, but not at the path yet. Raises SettingsError.

        predecessor  process id of the server that may listen there, as this one takes over from it
        """
        self._path = Path(path).absolute()
        self._unnamed = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        self._predecessor = predecessor
        self._replaced = _identity(self._path)
        _check_free(self._path, predecessor)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._unnamed.unlink(missing_ok=True)
            self.socket.bind(str(self._unnamed))  # with the mode that the umask leaves
            self.socket.listen(_BACKLOG)
            self._identity = _identity(self._unnamed)
        except OSError as error:
            self.socket.close()
            raise SettingsError(f"--uds: can't listen there: {error.strerror or error}") from None

    def publish(self) -> None:
        """From now on who connects to the path reaches this server. Raises OSError.

        Raises SettingsError if another server has come to the path since the start.
        """
        if _identity(self._path) != self._replaced:
            _check_free(self._path, self._predecessor)
        self._unnamed.rename(self._path)

    def refuse_new(self) -> None:
        """From now on nobody finds this socket. The path stays if it is another server's by now."""
        for path in (self._path, self._unnamed):
            if _identity(path) == self._identity:
                path.unlink(missing_ok=True)

    def num_waiting(self) -> int:
        """1 if connections wait that no process has accepted yet: the kernel does not say how many."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return len(poll.poll(0))

    def close(self) -> None:
        """Close our copy; the socket closes with the last process that has one."""
        self.refuse_new()
        self.socket.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """Of the file at the path; None if none is there."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_free(path: Path, predecessor: int | None) -> None:
    """Raises SettingsError for what must not be replaced: a file that is no socket, and a socket that another process
    serves."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # binding says what is wrong
    if not stat.S_ISSOCK(mode):
        raise SettingsError("--uds: something else than a socket is there already")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_CONNECT_SECONDS)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return  # whoever made it is gone
        except OSError as error:
            raise SettingsError(f"--uds: a socket is there already: {error.strerror or error}") from None
        pid = peer_of(client).pid
    if predecessor is None:
        raise SettingsError("--uds: another server listens there; stop it first, or take over from it with --takeover")
    if pid != predecessor:
        raise SettingsError(f"--uds: process {pid} listens there, and --takeover takes over from process {predecessor}")
