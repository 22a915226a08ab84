"""A whole server on localhost without keys: its own programs are answered, web pages are not."""

import socket

import pytest

from tests.server_e2e.running import PATIENCE, Server

BODY = {"input": "hello", "model": "any"}


@pytest.mark.holds("Hosts and web pages")
def test_who_is_answered(fake_server: Server) -> None:
    def status(method: str, path: str, **headers: str) -> int:
        return fake_server.request(method, path, BODY if method == "POST" else None, **headers).status

    port = fake_server.port
    assert status("POST", "/v1/embeddings", host=f"localhost:{port}") == 200
    assert status("POST", "/v1/embeddings", origin=f"http://localhost:{port}") == 200
    for path in ("/v1/embeddings", "/embed", "/"):
        assert status("POST", path, origin="https://page.example", content_type="text/plain") == 403
        assert status("POST", path, host=f"rebound.example:{port}") == 403
    assert status("GET", "/metrics", host="rebound.example") == 403
    assert status("GET", "/readyz", host="rebound.example") == 200


@pytest.mark.holds("Hosts and web pages")
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /info HTTP/1.0", b"200"),  # which needs no host
        (b"GET http://rebound.example/info HTTP/1.1\r\nhost: localhost", b"403"),
        (b"GET http://localhost/info HTTP/1.1\r\nhost: rebound.example", b"200"),
    ],
)
def test_what_names_the_host(fake_server: Server, head: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", fake_server.port), PATIENCE) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(12).endswith(b" " + status)
