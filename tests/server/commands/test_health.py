"""`embedline health` against servers that answer well, badly, late and not at all."""

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from server.commands import health as health_command
from server.commands.health import health, local_urls
from tests.server_e2e.running import PATIENCE
from tests.structure.sources import ROOT


class _SixServer(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


@contextmanager
def answering(answer: Callable[[http.server.BaseHTTPRequestHandler], object], host: str = "127.0.0.1") -> Iterator[str]:
    """An HTTP server in a thread; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    kind = _SixServer if ":" in host else http.server.ThreadingHTTPServer
    with kind((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def status(code: int) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(code if handler.path == "/readyz" else 404)
        handler.end_headers()

    return answer


@pytest.mark.holds("Readiness")
def test_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(status(200)) as url:
        assert health(url) == 0
    assert capsys.readouterr().out == "ready\n"


def test_a_server_that_listens_on_the_other_loopback_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(status(200), "::1") as url:
        monkeypatch.setenv("EMBEDLINE_PORT", url.rpartition(":")[2])
        assert health(*local_urls()) == 0
    assert capsys.readouterr().out == "ready\n"


@pytest.mark.holds("Readiness")
@pytest.mark.parametrize("code", [503, 404, 500, 301])
def test_not_ready(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(status(code)) as url:
        assert health(url) == 1
    assert capsys.readouterr().err == f"embedline: not ready: GET /readyz was answered with {code}\n"


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(status(200)) as url:
        pass
    assert health(url) == 1
    assert capsys.readouterr().err == "embedline: no answer: Connection refused\n"


def test_something_else_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(lambda handler: handler.wfile.write(b"220 mail ready\r\n\r\n")) as url:
        assert health(url) == 1
    assert capsys.readouterr().err.startswith("embedline: no answer: ")


def test_an_answer_that_never_comes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_command, "_TIMEOUT", 0.05)
    asked = threading.Event()
    with answering(lambda handler: asked.wait(PATIENCE)) as url:
        assert health(url) == 1
        asked.set()
    assert capsys.readouterr().err == "embedline: no answer: timed out\n"


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1", "127.0.0.1:80", "", "http://", "http://127.0.0.1:99999"])
def test_what_is_no_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert health(url) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_local_port_is_the_one_that_serve_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORT", raising=False)
    monkeypatch.delenv("EMBEDLINE_SSL_CERTFILE", raising=False)
    assert local_urls() == ("http://127.0.0.1:8080", "http://[::1]:8080")
    monkeypatch.setenv("PORT", "80")
    assert local_urls() == ("http://127.0.0.1:80", "http://[::1]:80")
    monkeypatch.setenv("AIP_HTTP_PORT", "8085")  # Vertex AI's, which outranks what an image has
    assert local_urls() == ("http://127.0.0.1:8085", "http://[::1]:8085")
    monkeypatch.setenv("EMBEDLINE_PORT", "9001")
    assert local_urls() == ("http://127.0.0.1:9001", "http://[::1]:9001")
    monkeypatch.setenv("EMBEDLINE_PORT", "tcp://10.96.1.1:80")  # Kubernetes's, of a Service called embedline
    assert local_urls() == ("http://127.0.0.1:8085", "http://[::1]:8085")
    monkeypatch.delenv("AIP_HTTP_PORT")
    monkeypatch.setenv("EMBEDLINE_SSL_CERTFILE", "certificate.pem")
    assert local_urls() == ("https://127.0.0.1:80", "https://[::1]:80")


def test_it_needs_the_standard_library_alone() -> None:
    """A container runs it for ever, so what it imports is paid for again and again."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); import server.commands.health"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False).returncode == 0
