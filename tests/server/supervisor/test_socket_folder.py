"""The folder of a running server: closed to others, found again by nobody, swept when its server was killed."""

import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.settings.flag import SettingsError
from server.supervisor.socket_folder import SocketFolder


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))  # a socket's path must be short
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.holds("Only the server's user can open its sockets")
def test_only_this_user_can_reach_the_sockets(runtime: Path) -> None:
    previous = os.umask(0)
    try:
        folder = SocketFolder()
        listening = folder.listen("engine-0")
    finally:
        assert os.umask(previous) == 0  # put back as it was

    assert folder.path.parent == runtime
    assert mode(folder.path) == 0o700
    assert mode(listening.path) == 0o600
    with listening.listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(listening.path)
    folder.remove()


def test_remove_leaves_nothing(runtime: Path) -> None:
    folder = SocketFolder()
    folder.listen("a").listener.close()

    folder.remove()

    assert list(runtime.iterdir()) == []


def test_what_a_killed_server_left_is_swept_and_a_running_ones_is_not(runtime: Path) -> None:
    running = SocketFolder()
    dead = runtime / "embedline-dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "engine-0.sock").touch()
    starting = runtime / "embedline-starting"  # its lock is not in place yet
    starting.mkdir()
    (starting / "lock.new").touch()
    foreign = runtime / "somebody-elses"
    foreign.mkdir()
    (foreign / "lock").touch()

    following = SocketFolder()

    assert set(runtime.iterdir()) == {running.path, following.path, starting, foreign}
    running.remove()
    following.remove()


@pytest.mark.parametrize("unusable", ["/nowhere/at/all", "/tmp/" + "long" * 20])
def test_where_the_runtime_folder_can_not_be_used_there_is_tmp(unusable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)

    folder = SocketFolder()
    path = Path(folder.listen("batch-manager-99").path)
    folder.remove()

    assert path.parent.parent == Path("/tmp")


def test_where_no_folder_can_be_written_to_one_line_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**kwargs: object) -> str:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(SettingsError, match=r"Read-only file system: set TMPDIR .*--tmpfs /tmp"):
        SocketFolder()
