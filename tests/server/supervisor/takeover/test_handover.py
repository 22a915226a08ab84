"""What a running server and its successor say to each other: who gets the sockets, when, and who is refused."""

import os
import resource
import socket
import threading
from pathlib import Path

import pytest

from server.http import server
from server.settings.flag import SettingsError
from server.supervisor import takeover
from server.supervisor.takeover import Handover, NoPlace, RunningServer, place
from tests.server.supervisor.takeover.running_server import elsewhere, find, run, running, until
from wire import frames


@pytest.mark.holds("Taking over")
def test_the_successor_gets_the_sockets_and_tells_when_it_is_ready() -> None:
    async def test() -> None:
        with running() as server:
            found = await find(server)

            assert found.pid == os.getpid()
            assert [one.getsockname() for one in found.http.sockets] == [server.listener.getsockname()]
            assert found.monitor is not None
            assert [one.getsockname() for one in found.monitor.sockets] == [server.monitor.getsockname()]
            assert found.offer.num_bytes > 1 << 20
            # a filter on a socket would be the other one's too
            assert found.http.kept_elsewhere
            assert server.http.kept_elsewhere
            assert server.taken == []

            found.drain()
            await until(lambda: server.taken)
            assert server.taken == [os.getpid()]
            assert not found.http.kept_elsewhere
            server.handover.close()
            await elsewhere(found.wait)
            # the same socket: whoever connected before or connects now is accepted by the successor
            client = socket.create_connection(server.listener.getsockname())
            server.listener.close()
            found.http.sockets[0].accept()[0].close()
            client.close()
            found.close()

    run(test)


@pytest.mark.holds("Taking over")
def test_when_the_successor_dies_the_running_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with running() as server:
            (await find(server)).close()
            await until(lambda: not server.http.kept_elsewhere)
            assert server.taken == []
            assert "this one goes on" in caplog.text
            (await find(server)).close()  # and the next one may try

    run(test)


@pytest.mark.holds("Taking over")
def test_of_two_at_once_one_is_refused() -> None:
    async def test() -> None:
        with running() as server:
            first = await find(server)
            with pytest.raises(SettingsError, match=r"^--takeover: the running server says: another server is taking"):
                await find(server)
            assert server.http.kept_elsewhere
            first.drain()
            await until(lambda: server.taken)
            first.close()

    run(test)


@pytest.mark.holds("Taking over")
@pytest.mark.parametrize(("phase", "words"), [("loading", "still loading"), ("stopping", "it is stopping")])
def test_a_server_that_is_not_serving_hands_nothing_over(phase: str, words: str) -> None:
    async def test() -> None:
        with running(is_loaded=phase != "loading") as server:
            if phase == "stopping":
                server.handover.stopping()
            with pytest.raises(SettingsError, match=words):
                await find(server)
            assert not server.http.kept_elsewhere

    run(test)


@pytest.mark.holds("Taking over")
def test_another_version_of_the_frames_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        path = place("127.0.0.1", 1)
        old.bind(str(path))
        old.listen()

        def answer() -> None:
            version = (frames.VERSION - 1).to_bytes(2, "little")
            channel, _ = old.accept()
            with channel:
                channel.sendall(b"".join(frames.frame(frames.HELLO, 0, [b"EMBL", version, b"\0\0"])))
                channel.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SettingsError, match=r"^--takeover: the peer speaks version 0 .*; stop the running server"):
            takeover.find(path)
        thread.join()


def test_the_running_server_refuses_another_version_too(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with running() as server, socket.socket(socket.AF_UNIX) as newer:
            newer.connect(str(server.path))
            newer.sendall(b"".join(frames.frame(frames.HELLO, 0, [b"EMBL", b"\xff\0", b"\0\0"])))
            await until(lambda: "was refused: the peer speaks version 255" in caplog.text)

    run(test)


def test_another_user_gets_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with running() as server, socket.socket(socket.AF_UNIX) as channel:
            path, own = server.path, os.getuid()
            monkeypatch.setattr(os, "getuid", lambda: own + 1)  # so that the peer is another one
            channel.connect(str(path))
            await until(lambda: f"user {own} may not take over" in caplog.text)
            channel.settimeout(20)
            while await elsewhere(lambda: channel.recv(100)):
                pass  # its handshake, then the end

    run(test)


@pytest.mark.holds("Taking over")
def test_a_folder_that_others_may_write_to_is_not_trusted(runtime: Path) -> None:
    folder = place("127.0.0.1", 1).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(NoPlace, match="mode 0700"):
        place("127.0.0.1", 1)
    folder.rmdir()
    folder.symlink_to("/tmp")
    with pytest.raises(NoPlace, match="mode 0700"):
        place("127.0.0.1", 1)
    folder.unlink()


def test_what_a_killed_server_left_is_no_server(runtime: Path) -> None:
    path = place("127.0.0.1", 1)
    assert takeover.find(path) is None
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert takeover.find(path) is None


@pytest.mark.holds("Taking over")
@pytest.mark.parametrize("is_told", [True, False], ids=["told to drain", "stopped before it was told"])
def test_the_newest_server_is_the_one_that_is_found(is_told: bool) -> None:
    """A takeover of a takeover: the successor's socket takes the place of the other's, who leaves it alone."""

    async def test() -> None:
        with running() as old:
            found = await find(old)
            newer = Handover(
                old.path,
                RunningServer(http=found.http, monitor=None, devices=["cpu"], pids=lambda: [1], is_loaded=lambda: True),
                taken=lambda pid: None,
            )
            newer.open()
            if is_told:
                found.drain()
                await until(lambda: old.taken)
            old.handover.close()
            third = await find(old)
            assert third.monitor is None
            third.close()
            newer.close()
            assert not old.path.exists()
            found.close()

    run(test)


@pytest.mark.holds("Taking over", "Limits")
def test_a_moment_without_descriptors_ends_takeovers_for_that_moment_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.02)

    async def test() -> None:
        with running() as server, socket.socket(socket.AF_UNIX) as early:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                early.connect(str(server.path))
                await until(lambda: "none can be accepted" in caplog.text)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            (await find(server)).close()

    run(test)
