"""A whole server that listens on a Unix socket too: it answers there as on its port, also while it is replaced."""

import contextlib
import http.client
import socket
from pathlib import Path

import numpy as np
import pytest

from embedline import Client
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, Reply, Server, send

BODY = {"input": "hello", "model": "any"}


class UnixConnection(http.client.HTTPConnection):
    """To the socket in a server's folder."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


def embed(path: str, key: str = "sesame") -> Reply:
    with contextlib.closing(UnixConnection(path)) as connection:
        return send(connection, "POST", "/v1/embeddings", BODY, authorization=f"Bearer {key}")


@pytest.mark.full
@pytest.mark.holds("A Unix socket", "API keys")
def test_it_answers_on_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the paths of sockets are short
    server = Server(*FAKE, "--uds", "http.sock", "--frontends", "2", "--api-key", "sesame", folder=tmp_path)
    try:
        server.wait_ready()
        server.log.wait_for(r"and on the socket of --uds$")
        by_port = server.request("POST", "/v1/embeddings", BODY, authorization="Bearer sesame")

        assert all(embed("http.sock").json()["data"] == by_port.json()["data"] for _ in range(8))
        assert embed("http.sock", "wrong").status == 401
        with Client(f"unix://{tmp_path}/http.sock", "sesame") as client:
            row = np.float32(by_port.json()["data"][0]["embedding"])
            assert (client.embed("hello").numpy() == row).all()
        with contextlib.closing(UnixConnection("http.sock")) as idle:
            assert send(idle, "GET", "/livez").status == 200
            assert server.stop() == 0
        assert not Path("http.sock").exists()
    finally:
        server.close()


@pytest.mark.full
@pytest.mark.holds("Taking over")
def test_a_successor_takes_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    flags = (*FAKE, "--uds", "http.sock", "--port", port, "--api-key", "sesame")
    first = Server(*flags, folder=tmp_path)
    second: Server | None = None
    try:
        first.wait_ready()
        second = Server(*flags, "--takeover", folder=tmp_path)
        while first.process.poll() is None:
            assert embed("http.sock").status == 200
        assert first.process.returncode == 0
        second.wait_ready()
        assert embed("http.sock").status == 200
        assert second.stop() == 0
        assert not Path("http.sock").exists()
    finally:
        first.close()
        if second is not None:
            second.close()
