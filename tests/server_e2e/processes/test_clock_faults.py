"""The wall clock jumps, in all processes at once, while the server works: nothing but dates may notice."""

import json
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE, SPREAD
from tests.server_e2e.load import Load
from tests.server_e2e.running import PATIENCE, Server, send, serving

pytestmark = [pytest.mark.faults, pytest.mark.full]

SOURCE = Path(__file__).with_name("wall_clock.c")
DAY, YEAR = 24 * 3600, 365 * 24 * 3600


class Clock:
    """The wall clock of the server's processes. The test's own stays right."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("the program cc is not installed")
        self._file, library = folder / "offset", folder / "wall_clock.so"
        self.jump(0)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """So far from the right time."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("<q", seconds))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    keys = tmp_path / "keys"
    keys.write_text("first-key\n")
    with (tmp_path / "requests").open("wb") as log:
        flags = (*FAKE, *SPREAD, "--frontends", "1", "--fake-cost-ms", "5", "--api-key-file", str(keys))
        with serving(*flags, folder=tmp_path, environment=clock.environment, stdout=log.fileno()) as running:
            yield running


def ask(server: Server, **headers: str) -> int:
    body = {"input": "a text", "model": "any"}
    return server.request("POST", "/v1/embeddings", body, authorization="Bearer first-key", **headers).status


@pytest.mark.holds("Deadlines", "Any one process but the supervisor may be killed at any time")
def test_a_clock_that_jumps_expires_nothing(server: Server, clock: Clock, tmp_path: Path) -> None:
    """Forward and back, by a minute up to a year. Then processes are killed: the new ones start at the wrong time."""
    connection = server.connect()
    for offset in (60, -60, DAY, -DAY, YEAR, -YEAR, 0, 3 * DAY):
        clock.jump(offset)
        for _ in range(20):
            assert ask(server, request_timeout_ms="5000") == 200
        headers = {"authorization": "Bearer first-key"}
        assert send(connection, "POST", "/v1/embeddings", {"input": "kept", "model": "any"}, **headers).status == 200
    connection.close()
    for title in ("engine 0", "tokenizer 0", "batch manager 0"):
        seen = len(server.log.lines)
        server.kill(title)
        clock.jump(-DAY)
        server.log.wait_for(f"{title} is ready", after=seen)
        assert ask(server) == 200
    assert server.request("GET", "/readyz").status == 200
    assert not [line for line in server.log.lines if "has ended" in line and "SIGKILL" not in line]
    assert server.stop() == 0
    lines = [json.loads(line) for line in (tmp_path / "requests").read_text().splitlines()]
    years = {int(line["ts"][:4]) for line in lines}
    assert len(years) >= 3  # the jumps were real


@pytest.mark.holds("Deadlines")
def test_a_deadline_by_the_wall_clock_is_measured_when_the_request_comes(server: Server, clock: Clock) -> None:
    """From then on it is a number of seconds, which no jump changes."""

    def deadline(seconds: float) -> str:
        """By the test's clock, so many seconds from now."""
        return str(int(1000 * (time.time() + seconds)))

    assert ask(server, request_deadline_ms=deadline(30)) == 200
    clock.jump(DAY)  # the server's clock is ahead of the client's
    assert ask(server, request_deadline_ms=deadline(30)) == 504
    assert ask(server, request_deadline_ms=deadline(DAY + 30)) == 200
    clock.jump(-DAY)
    assert ask(server, request_deadline_ms=deadline(30)) == 200
    clock.jump(0)
    big = {"input": ["a text of some words"] * 2000, "model": "any"}
    connection = server.connect()
    connection.request(
        "POST",
        "/v1/embeddings",
        json.dumps(big),
        {"authorization": "Bearer first-key", "content-type": "application/json", "request-deadline-ms": deadline(60)},
    )
    while "embedline_open_requests 0" in page(server):
        pass
    clock.jump(DAY)
    assert connection.getresponse().status == 200
    connection.close()


def page(server: Server) -> str:
    return server.request("GET", "/metrics").body.decode()


@pytest.mark.holds("API keys")
def test_a_key_file_is_read_again_after_a_jump(server: Server, clock: Clock, tmp_path: Path) -> None:
    for number, offset in enumerate((-YEAR, YEAR, 0)):
        clock.jump(offset)
        key = f"key-of-jump-{number}"
        (tmp_path / "keys").write_text(f"first-key\n{key}\n")
        headers = {"authorization": f"Bearer {key}"}
        began = time.monotonic()
        while server.request("POST", "/v1/embeddings", {"input": "a"}, **headers).status == 401:
            assert time.monotonic() - began < PATIENCE


@pytest.mark.holds("Every text gets its own row")
def test_a_clock_that_jumps_all_the_time(server: Server, clock: Clock) -> None:
    """Under load, ten jumps; every row is right and none is lost."""
    server_load = Load(server, 8, headers={"authorization": "Bearer first-key"})
    with server_load as load:
        for number in range(10):
            clock.jump((-1) ** number * number * DAY)
            load.wait_for(100)
    assert not load.wrong
    assert set(load.outcomes) == {200}


def test_the_shim_moves_the_clock(clock: Clock) -> None:
    """Else these tests would show nothing."""
    clock.jump(DAY)
    shown = subprocess.check_output(
        ["python3", "-c", "import time; print(time.time())"], env={**os.environ, **clock.environment}
    )
    assert float(shown) - time.time() > DAY - 60
