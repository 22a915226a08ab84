"""SIGTERM under load, with nothing but the server to keep requests from being lost; and in every phase of its life."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.restart.load import CLOSED, Load
from tests.server_e2e.expected import FAKE, SPREAD
from tests.server_e2e.running import PATIENCE, ROOT, Server, serving

FLAGS = (*FAKE, "--fake-cost-ms", "2", "--frontends", "2")


async def terminated_under_load(server: Server, number: signal.Signals, num_requests: int) -> Load:
    async with Load(server.port) as load:
        await load.wait_for(num_requests)
        server.process.send_signal(number)
        await asyncio.to_thread(server.process.wait, PATIENCE)
    return load


@pytest.mark.holds("A connection that was established is answered", "Shutdown")
@pytest.mark.parametrize(
    ("number", "delay"),
    [
        (signal.SIGTERM, "0"),
        *[
            pytest.param(*case, marks=[pytest.mark.full, pytest.mark.faults])
            for case in ((signal.SIGTERM, "0.5"), (signal.SIGINT, "60"))
        ],
    ],
)
def test_no_request_is_lost(number: signal.Signals, delay: str, tmp_path: Path) -> None:
    with serving(*FLAGS, "--drain-delay", delay, folder=tmp_path) as server:
        load = asyncio.run(terminated_under_load(server, number, 300))
        assert load.lost == {}
        assert server.process.returncode == 0
        assert not [line for line in server.log.lines if " ERROR " in line or "Traceback" in line]


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("A connection that was established is answered", "Shutdown")
@pytest.mark.parametrize("round_", range(4))
def test_no_request_is_lost_in_any_of_many(round_: int, tmp_path: Path) -> None:
    with serving(*FLAGS, "--drain-delay", "0.2", folder=tmp_path) as server:
        load = asyncio.run(terminated_under_load(server, signal.SIGTERM, 1000))
        assert load.lost == {}
        assert server.process.returncode == 0


@pytest.mark.full
@pytest.mark.holds("Shutdown", "Readiness")
def test_while_it_drains_it_answers_and_says_that_it_closes(tmp_path: Path) -> None:
    with serving(*FAKE, "--drain-delay", "3600", folder=tmp_path) as server:
        with contextlib.closing(server.connect()) as kept:
            kept.request("GET", "/livez")
            kept.getresponse().read()
            server.process.send_signal(signal.SIGTERM)
            server.log.wait_for("stopping; connections are accepted for 3600 s more")
            while (reply := server.request("GET", "/readyz")).status != 503:
                pass
            assert reply.headers["connection"] == "close"
            assert reply.body == b"the server is stopping"
            assert server.embed("as ever").status == 200
            kept.request("GET", "/livez")
            answer = kept.getresponse()
            assert (answer.status, answer.getheader("connection")) == (200, "close")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Shutdown", "When a process dies")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_hangs_while_requests_are_finished_is_replaced(
    how: signal.Signals, tmp_path: Path
) -> None:
    flags = (*FAKE, "--fake-cost-ms", "1500", "--heartbeat-timeout", "2", "--engine-restart-grace", "60")
    with serving(*flags, folder=tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(PATIENCE)
        client.sendall(CLOSED)
        while b'embedline_open_requests{process="frontend 0"} 2.0' not in server.request("GET", "/metrics").body:
            pass
        engine = server.processes()["engine 0"]
        server.process.send_signal(signal.SIGTERM)
        server.log.wait_for("stopping")
        os.kill(engine, how)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Shutdown")
@pytest.mark.parametrize("line", ["serving ", "tokenizer 0 is ready", "engine 0 is ready", "supervisor: ready"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_every_phase(line: str, number: signal.Signals, tmp_path: Path) -> None:
    """The delay is for balancers, which never knew a server that was never ready."""
    delay = "0" if "supervisor" in line else "3600"
    server = Server(*FAKE, *SPREAD, "--drain-delay", delay, folder=tmp_path)
    with contextlib.closing(server):
        server.log.wait_for(line)
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
        server.log.join()
        assert not [line for line in server.log.lines if "Traceback" in line or " ERROR " in line], "\n".join(
            server.log.lines
        )


@pytest.mark.full
@pytest.mark.holds("Shutdown")
def test_sockets_that_are_passed_in_outlive_the_server(tmp_path: Path) -> None:
    """As systemd does it: what connects between two servers waits for the next one."""
    passing = 'exec 3<&"$1"; shift; exec env LISTEN_PID=$$ LISTEN_FDS=1 "$@"'
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def start() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-P", "-m", "embedline", "serve", *FAKE, "--prometheus-port", "0"]
            return subprocess.Popen(
                ["bash", "-c", passing, "sh", str(listener.fileno()), *command],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "XDG_RUNTIME_DIR": str(tmp_path),
                    "EMBEDLINE_DRAIN_DELAY": "0",
                },
                pass_fds=[listener.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

        def answer(client: socket.socket) -> bytes:
            client.settimeout(PATIENCE)
            return client.recv(12)

        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
                server = start()
                try:
                    assert answer(client) == b"HTTP/1.1 200"
                    server.send_signal(signal.SIGTERM)
                    assert server.wait(PATIENCE) == 0
                finally:
                    server.kill()
                    server.wait()
