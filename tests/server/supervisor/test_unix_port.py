"""A Unix socket at a path: where it may be, whose place it takes, and how it ends."""

import asyncio
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.settings.flag import SettingsError
from server.supervisor.listeners import UnixPort
from server.supervisor.supervisor import empty_queues


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)  # the paths of sockets are short
    yield "http.sock"
    assert [left for left in os.listdir(tmp_path) if left.startswith("http.sock.")] == []


def connect(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(5)
    try:
        client.connect(path)
    except OSError:
        client.close()
        raise
    return client


@pytest.mark.holds("A Unix socket")
def test_it_is_there_when_it_is_published_and_gone_when_it_is_closed(path: str) -> None:
    port = UnixPort(path)
    assert not Path(path).exists()

    port.publish()

    assert port.num_waiting() == 0
    with connect(path):
        assert port.num_waiting() == 1
        port.socket.accept()[0].close()
        assert port.num_waiting() == 0
    port.close()
    port.close()
    assert not Path(path).exists()


@pytest.mark.holds("A Unix socket")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o007, 0o770)])
def test_the_umask_says_who_may_connect(path: str, umask: int, mode: int) -> None:
    previous = os.umask(umask)
    try:
        port = UnixPort(path)
    finally:
        os.umask(previous)
    port.publish()
    assert stat.S_IMODE(Path(path).stat().st_mode) == mode
    port.close()


@pytest.mark.holds("A Unix socket")
@pytest.mark.parametrize("predecessor", [None, 1])
def test_what_a_killed_server_left_is_replaced(path: str, predecessor: int | None) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)

    port = UnixPort(path, predecessor=predecessor)
    port.publish()

    connect(path).close()
    port.close()


@pytest.mark.holds("A Unix socket")
@pytest.mark.parametrize("what", ["a server", "a file", "no folder", "a long path"])
def test_what_can_not_be_ends_with_one_line(path: str, what: str) -> None:
    other = socket.socket(socket.AF_UNIX)
    match what:
        case "a server":
            other.bind(path)
            other.listen(1)
        case "a file":
            Path(path).write_text("precious")
        case "no folder":
            path = "none/http.sock"
        case _:
            path = "x" * 200
    with pytest.raises(SettingsError, match=r"^--uds: ") as refused:
        UnixPort(path)
    assert "\n" not in str(refused.value)
    assert what != "a file" or Path(path).read_text() == "precious"
    other.close()


@pytest.mark.holds("Taking over")
def test_a_successor_takes_the_path_and_both_serve_who_reached_them(path: str) -> None:
    old = UnixPort(path)
    old.publish()
    before = connect(path)

    new = UnixPort(path, predecessor=os.getpid())
    with connect(path):
        assert (old.num_waiting(), new.num_waiting()) == (1, 0)  # until it is published
    new.publish()
    after = connect(path)

    assert new.num_waiting() == 1
    old.close()
    connect(path).close()  # the path is the successor's
    for client in (before, after):
        client.close()
    new.close()


@pytest.mark.holds("A Unix socket", "Taking over")
def test_a_successor_takes_no_path_of_another_server(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen(1)
        with pytest.raises(SettingsError, match=rf"^--uds: process {os.getpid()} listens there, .* from process 1$"):
            UnixPort(path, predecessor=1)


@pytest.mark.holds("A Unix socket")
@pytest.mark.parametrize("predecessor", [None, 1])
def test_a_server_that_came_to_the_path_meanwhile_keeps_it(path: str, predecessor: int | None) -> None:
    late = UnixPort(path, predecessor=predecessor)
    first = UnixPort(path + ".of another")
    first.publish()
    Path(path + ".of another").rename(path)

    with pytest.raises(SettingsError, match=r"^--uds: "):
        late.publish()

    late.close()
    with connect(path):
        assert first.num_waiting() == 1
    Path(path).unlink()
    first.close()


@pytest.mark.holds("Shutdown")
def test_who_is_in_its_queue_is_served_and_nobody_else_comes_in(path: str) -> None:
    port = UnixPort(path)
    port.publish()
    client = connect(path)
    accepted: list[socket.socket] = []

    def accept() -> bool:
        with pytest.raises(FileNotFoundError):
            connect(path)
        accepted.append(port.socket.accept()[0])
        return True

    asyncio.run(empty_queues([port], is_worth_waiting=accept))

    assert len(accepted) == 1
    accepted[0].close()
    client.close()
    port.close()
