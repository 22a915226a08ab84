"""A whole server that speaks TLS: what it answers, and keys and certificates that are replaced while it runs."""

import contextlib
import http.client
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.certificates import Pair, make_pair
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, ROOT, Reply, Server, send

BODY = {"input": "hello", "model": "any"}


class TlsServer(Server):
    """Asked as by a client that trusts its first certificate alone."""

    trusted: Pair

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=self.trusted.trusting())


@contextlib.contextmanager
def serving_tls(folder: Path, *flags: str) -> Iterator[TlsServer]:
    pair = make_pair(folder / "first")
    (folder / "keys").write_text("old:old-sesame\n")
    files = ("--ssl-certfile", str(pair.certfile), "--ssl-keyfile", str(pair.keyfile), "--api-key-file", "keys")
    running = TlsServer(*FAKE, *files, *flags, folder=folder)
    running.trusted = pair
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


def embed(server: Server, key: str) -> Reply:
    with contextlib.closing(server.connect()) as connection:
        return embed_on(connection, key)


def embed_on(connection: http.client.HTTPConnection, key: str) -> Reply:
    return send(connection, "POST", "/v1/embeddings", BODY, authorization=f"Bearer {key}")


@pytest.mark.full
@pytest.mark.holds("TLS", "Readiness")
def test_it_answers_and_the_health_command_asks_by_tls(tmp_path: Path) -> None:
    with serving_tls(tmp_path) as server:
        server.log.wait_for(rf"on https://127\.0\.0\.1:{server.port}")
        assert embed(server, "old-sesame").status == 200
        assert embed(server, "wrong").status == 401
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PORT": str(server.port), "EMBEDLINE_SSL_CERTFILE": "any"}
        command = [sys.executable, "-P", "-m", "embedline", "health"]
        asked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        with contextlib.closing(server.connect()) as idle:
            assert send(idle, "GET", "/livez").status == 200
            assert server.stop() == 0

    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "ready\n", "")


@pytest.mark.full
@pytest.mark.holds("API keys", "TLS")
def test_keys_and_certificate_are_taken_anew_by_every_frontend(tmp_path: Path) -> None:
    """Also by a frontend that is started after the change; the supervisor has told it what was read before."""
    with serving_tls(tmp_path, "--frontends", "2") as server:
        assert embed(server, "old-sesame").status == 200
        (tmp_path / "keys").write_text("new:new-sesame\n")
        make_pair(tmp_path / "second").copy_to(server.trusted)  # so that the client trusts the new one, too

        wait_until_all(server, "new-sesame", 200)
        wait_until_all(server, "old-sesame", 401)
        seen = len(server.log.lines)
        server.kill("frontend 0")
        server.log.wait_for("frontend 0 is ready", after=seen)

        for _ in range(20):
            assert embed(server, "new-sesame").status == 200
            assert embed(server, "old-sesame").status == 401
        assert not [line for line in server.log.lines if "sesame" in line]


@pytest.mark.full
@pytest.mark.holds("TLS", "When a process dies")
def test_a_frontend_that_is_restarted_while_key_and_certificate_do_not_fit_serves(tmp_path: Path) -> None:
    with serving_tls(tmp_path, "--frontends", "1") as server:
        newer = make_pair(tmp_path / "second")
        first = Pair(tmp_path / "trusted.pem", tmp_path / "trusted.key")
        server.trusted.copy_to(first)
        used, server.trusted = server.trusted, first
        used.certfile.write_bytes(newer.certfile.read_bytes())
        seen = len(server.log.lines)
        server.kill("frontend 0")
        server.log.wait_for("frontend 0 is ready", after=seen)

        assert embed(server, "old-sesame").status == 200


def wait_until_all(server: Server, key: str, status: int) -> None:
    """Until twenty connections, open at a time so that the frontends share them, get this status."""
    statuses: list[int] = []
    while statuses != [status] * 20:
        assert server.process.poll() is None
        statuses.clear()
        with contextlib.ExitStack() as stack, contextlib.suppress(ssl.SSLError):  # of one that has not looked again yet
            for _ in range(20):
                connection = stack.enter_context(contextlib.closing(server.connect()))
                statuses.append(embed_on(connection, key).status)
