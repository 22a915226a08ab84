"""The ports of a successor: which go along, and what is refused before the running server ends."""

import asyncio
import socket
from pathlib import Path

import pytest

from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor import takeover
from server.supervisor.ports import open_ports
from server.supervisor.takeover import Predecessor
from tests.server.supervisor.takeover.running_server import close, elsewhere, run, running, until


@pytest.mark.holds("Taking over")
def test_two_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "free_memory", lambda: 1 << 20)

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
    monkeypatch.setattr(takeover, "memory_of", lambda pids: 1 << 60)

    async def test() -> None:
        with running(devices=("cuda:0", "cuda:1")) as server:
            opening = asyncio.create_task(elsewhere(lambda: open_ports(server.settings(), ["cuda:1", "cuda:2"])))
            await until(lambda: server.taken)
            assert not opening.done()
            server.handover.close()
            server.listener.close()
            with socket.create_connection(("127.0.0.1", (await opening).http.address[1])):
                pass
            close(await opening)

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
            close(ports)

    run(test)


def test_where_no_server_runs_it_is_an_ordinary_start(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Settings(port=port, takeover=True, prometheus_port=0, models=(ModelSettings(engine="fake"),))
    ports = open_ports(settings, ["cpu"])
    assert ports.predecessor is None
    assert ports.http.address == ("127.0.0.1", port)
    close(ports)


@pytest.mark.holds("Taking over", "A Unix socket")
def test_a_socket_of_another_server_is_not_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who listens; here all is one process, so the running server has to be said to be another."""
    monkeypatch.chdir(tmp_path)

    async def test() -> None:
        with running() as server, socket.socket(socket.AF_UNIX) as other:
            other.bind("http.sock")
            other.listen(1)
            ports = await elsewhere(lambda: open_ports(server.settings(uds="http.sock"), ["cpu"]))
            close(ports)
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
