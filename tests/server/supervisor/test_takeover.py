"""What a running server and its successor say to each other: who gets the sockets, when, and who is refused."""

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from server.http import acceptor
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.listening.listeners import Listeners
from server.supervisor.listening.opening import Ports, open_ports
from server.supervisor.listening.ports import bind
from server.supervisor.takeover import handover, memory, predecessor
from server.supervisor.takeover.handover import Handover, RunningServer
from server.supervisor.takeover.place import NoPlace, place
from server.supervisor.takeover.predecessor import Predecessor
from wire import frames

_T = TypeVar("_T")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of this test alone, with a short path."""
    folder = Path("/tmp") / f"takeover-{os.getpid()}-{hash(tmp_path) & 0xFFFFFF:x}"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


class Running:
    """A running server as a successor meets it."""

    def __init__(self, *, devices: tuple[str, ...] = ("cpu",), is_loaded: bool = True) -> None:
        self.listener = bind("127.0.0.1", 0, "--port")
        self.monitor = bind("127.0.0.1", 0, "--prometheus-port")
        self.http = Listeners([self.listener])
        self.taken: list[int] = []
        self.handover = Handover(
            self.path,
            RunningServer(
                http=self.http,
                monitor=Listeners([self.monitor]),
                devices=devices,
                pids=lambda: [os.getpid()],
                is_loaded=lambda: is_loaded,
            ),
            taken=self.taken.append,
        )
        self.handover.open()

    @property
    def path(self) -> Path:
        return place("127.0.0.1", self.port)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def settings(self, **others: Any) -> Settings:
        models = (ModelSettings(engine="fake"),)
        return Settings(port=self.port, takeover=True, models=models, **others)

    def close(self) -> None:
        self.handover.close()
        self.listener.close()
        self.monitor.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(limited())


@contextlib.contextmanager
def running(*, devices: tuple[str, ...] = ("cpu",), is_loaded: bool = True) -> Iterator[Running]:
    server = Running(devices=devices, is_loaded=is_loaded)
    try:
        yield server
    finally:
        server.close()


async def elsewhere(call: Callable[[], _T]) -> _T:
    """In a thread: a successor asks before it has an event loop."""
    return await asyncio.to_thread(call)


async def find(server: Running) -> Predecessor:
    found = await elsewhere(lambda: predecessor.find(server.path))
    assert found is not None
    return found


def forget(found: Predecessor) -> None:
    Ports(found.http, found.monitor, found).close()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - conditions of all kinds
        await asyncio.sleep(0.005)


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
            forget(found)

    run(test)


@pytest.mark.holds("Taking over")
def test_when_the_successor_dies_the_running_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with running() as server:
            forget(await find(server))
            await until(lambda: not server.http.kept_elsewhere)
            assert server.taken == []
            assert "this one goes on" in caplog.text
            forget(await find(server))  # and the next one may try

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
            forget(first)

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
            predecessor.find(path)
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
    assert predecessor.find(path) is None
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert predecessor.find(path) is None


@pytest.mark.holds("Taking over")
def test_two_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 20)

    async def test() -> None:
        with running() as server:
            with pytest.raises(SettingsError, match=r"holds \d+ MiB .*: 1 MiB are free; stop the running server first"):
                await elsewhere(lambda: open_ports(server.settings(), ["cpu"]))
            await until(lambda: not server.http.kept_elsewhere)
            assert server.taken == []

    run(test)


@pytest.mark.holds("Taking over")
def test_on_a_gpu_that_both_need_the_running_server_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait in the backlog meanwhile."""
    monkeypatch.setattr(handover, "memory_of", lambda pids: 1 << 60)

    async def test() -> None:
        with running(devices=("cuda:0", "cuda:1")) as server:
            opening = asyncio.create_task(elsewhere(lambda: open_ports(server.settings(), ["cuda:1", "cuda:2"])))
            await until(lambda: server.taken)
            assert not opening.done()
            server.handover.close()
            server.listener.close()
            with socket.create_connection(("127.0.0.1", (await opening).http.address[1])):
                pass
            (await opening).close()

    run(test)


@pytest.mark.holds("Taking over")
def test_a_successor_that_can_not_start_ends_no_server() -> None:
    """Also on a GPU, where the running server would end first."""

    async def test() -> None:
        with running(devices=("cuda:0",)) as server, socket.create_server(("127.0.0.1", 0)) as other:
            settings = server.settings(prometheus_port=other.getsockname()[1])
            with pytest.raises(SettingsError, match="--prometheus-port"):
                await elsewhere(lambda: open_ports(settings, ["cuda:0"]))
            await until(lambda: not server.http.kept_elsewhere)
            assert server.taken == []

    run(test)


@pytest.mark.parametrize("port", [None, "the same", 0])
def test_the_monitor_port_goes_along_unless_another_is_asked_for(port: str | int | None) -> None:
    async def test() -> None:
        with running() as server:
            monitor_port = server.monitor.getsockname()[1]
            asked = {} if port is None else {"prometheus_port": monitor_port if port == "the same" else port}
            ports = await elsewhere(lambda: open_ports(server.settings(**asked), ["cpu"]))
            assert (ports.monitor and ports.monitor.address[1]) == (None if port == 0 else monitor_port)
            ports.close()

    run(test)


def test_where_no_server_runs_it_is_an_ordinary_start(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Settings(port=port, takeover=True, prometheus_port=0, models=(ModelSettings(engine="fake"),))
    ports = open_ports(settings, ["cpu"])
    assert ports.predecessor is None
    assert ports.http.address == ("127.0.0.1", port)
    ports.close()


@pytest.mark.holds("Taking over", "A Unix socket")
def test_a_socket_of_another_server_is_not_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who listens; here all is one process, so the running server has to be said to be another."""
    monkeypatch.chdir(tmp_path)

    async def test() -> None:
        with running() as server, socket.socket(socket.AF_UNIX) as other:
            other.bind("http.sock")
            other.listen(1)
            ports = await elsewhere(lambda: open_ports(server.settings(uds="http.sock"), ["cpu"]))
            ports.close()
            await until(lambda: not server.http.kept_elsewhere)

            monkeypatch.setattr(Predecessor, "pid", 1)
            with pytest.raises(SettingsError, match=r"^--uds: process .* takes over from process 1$"):
                await elsewhere(lambda: open_ports(server.settings(uds="http.sock"), ["cpu"]))
            await until(lambda: not server.http.kept_elsewhere)

    run(test)


@pytest.mark.holds("Taking over", "A Unix socket")
def test_where_no_server_runs_a_socket_that_is_served_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free, socket.socket(socket.AF_UNIX) as other:
        other.bind("http.sock")
        other.listen(1)
        settings = Settings(
            port=free.getsockname()[1], takeover=True, uds="http.sock", models=(ModelSettings(engine="fake"),)
        )
        with pytest.raises(SettingsError, match=r"^--uds: another server listens there"):
            open_ports(settings, ["cpu"])


@pytest.mark.holds("Taking over")
def test_the_newest_server_is_the_one_that_is_found() -> None:
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
            found.drain()
            await until(lambda: old.taken)
            old.handover.close()
            third = await find(old)
            assert third.monitor is None
            forget(third)
            newer.close()
            assert not old.path.exists()
            forget(found)

    run(test)


@pytest.mark.holds("Taking over", "Limits")
def test_a_moment_without_descriptors_ends_takeovers_for_that_moment_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "_RETRY_SECONDS", 0.02)

    async def test() -> None:
        with running() as server, socket.socket(socket.AF_UNIX) as early:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                early.connect(str(server.path))
                await until(lambda: "none can be accepted" in caplog.text)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            forget(await find(server))

    run(test)
