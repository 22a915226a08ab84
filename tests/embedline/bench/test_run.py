"""Whole runs: what is printed, what is written, exit codes."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embedline.bench.load import Load, Phase
from embedline.bench.options import Options, OptionsError
from embedline.bench.run import _Display, _shown, run
from tests.embedline.bench.scripted import Server, answer, scripted
from tests.server_e2e.running import PATIENCE


class Elsewhere:
    """A scripted server on a thread, for what has an event loop of its own."""

    def __init__(self, *script: bytes | None) -> None:
        self._script = script
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._thread.start()
        self._ready.wait(PATIENCE)

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with scripted(*self._script) as self.server:
            self._ready.set()
            await self._stop.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    elsewhere = Elsewhere(*getattr(request, "param", (answer(),)))
    yield elsewhere.server
    elsewhere.stop()


def options(server: Server, **fields: Any) -> Options:
    return Options(url=f"http://127.0.0.1:{server.target.port}", **{"warmup": 0.0, **fields})


def test_a_run_prints_its_figures_and_writes_them(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    assert run(options(server, requests=30, concurrency=4, batch_size=2, json=path, api_key="secret")) == 0
    out, err = capsys.readouterr()
    assert "closed loop: 4 requests of 2 texts in flight" in out
    assert "answered    30 requests, 60 texts" in out
    assert all(name in out for name in ("requests/s", "texts/s", "tokens/s", "p50", "p90", "p99", "p99.9", "max", "##"))
    assert "load: 100%, 30 answers" in err
    written = json.loads(path.read_text())
    assert written["answered_requests"] == 30
    assert len(written["latencies_ms"]) == 30
    assert "secret" not in path.read_text() + out + err


def test_a_warm_up_does_not_count(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options(server, requests=5, concurrency=1, warmup=0.05)) == 0
    out, err = capsys.readouterr()
    assert "answered    5 requests" in out
    assert "warm-up: 100%" in err
    assert len(server.bodies) > 5


def test_an_open_loop_prints_its_seed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options(server, requests=10, rate=2000.0, seed=17)) == 0
    out = capsys.readouterr().out
    assert "open loop: 2000 requests/s of 1 text (Poisson, seed 17)" in out
    assert "ms late" in out


@pytest.mark.parametrize("server", [(answer(b'{"error":"no"}', status=b"401 Unauthorized"),)], indirect=True)
def test_nothing_but_refusals_is_a_failure(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options(server, requests=2, concurrency=2)) == 1
    assert 'failed      2 times HTTP 401: {"error":"no"}' in capsys.readouterr().out


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        assert run(Options(url=f"127.0.0.1:{bound.getsockname()[1]}", warmup=0.0)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "can't be reached" in err


def test_a_file_that_can_not_be_written_is_found_before_the_run(server: Server, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"^--json "):
        run(options(server, requests=1, json=tmp_path))
    assert server.bodies == []


async def test_the_bar_is_drawn_while_a_phase_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = _Display()
    try:
        async with _shown(bar, "load", Phase(Load(concurrency=1, seconds=1.0))):
            await asyncio.sleep(0)
    finally:
        bar.close()
    assert "load" in capsys.readouterr().err
