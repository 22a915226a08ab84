"""Where `make` takes torch from if nobody says: .ci/torch_index.py."""

import importlib.util
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from tests.structure.sources import ROOT


@pytest.fixture
def torch_index() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_index", ROOT / ".ci" / "torch_index.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/torch/" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def silent() -> Iterator[str]:
    """An index that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def chosen(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> str:
    module.main()
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("has_driver", [True, False])
def test_cpu_builds_are_for_machines_without_a_driver(
    torch_index: ModuleType,
    index: str,
    has_driver: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch_index, "CPU_INDEX", index)
    monkeypatch.setattr(torch_index, "has_driver", lambda: has_driver)
    assert chosen(torch_index, capsys) == ("" if has_driver else index)


def test_the_default_is_taken_where_nobody_answers(
    torch_index: ModuleType,
    silent: str,
    index: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch_index, "has_driver", lambda: False)
    monkeypatch.setattr(torch_index, "SECONDS", 0.1)
    for address in (silent, f"{index}/elsewhere", "nowhere"):
        monkeypatch.setattr(torch_index, "CPU_INDEX", address)
        assert chosen(torch_index, capsys) == ""


def test_a_driver_is_known_by_its_program(
    torch_index: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert torch_index.has_driver()
