"""Four frontends on one port: how connections are spread, and what becomes of new ones while a frontend is gone."""

import contextlib
import http.client
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import Server, send, serving

Reached = Callable[[str, str], None]
pytestmark = [pytest.mark.faults, pytest.mark.full]

FRONTENDS = ("--frontends", "4")
_ESTABLISHED = "01"


def num_connections(server: Server) -> list[int]:
    """Of each frontend, as the kernel knows it."""
    table = Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in table]
    inodes = {row[9] for row in rows if row[1].endswith(f":{server.port:04X}") and row[3] == _ESTABLISHED}
    processes = sorted(server.processes().items())
    return [len(inodes & sockets(pid)) for title, pid in processes if title.startswith("frontend")]


def sockets(pid: int) -> set[str]:
    """Inodes."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry)):
                found.add(match[1])
    return found


@contextlib.contextmanager
def four_frontends(folder: Path) -> Iterator[Server]:
    """All of them accept; a server is ready as soon as one does."""
    with serving(*FAKE, *FRONTENDS, folder=folder) as server:
        for number in range(4):
            server.log.wait_for(f"frontend {number} is ready")
        yield server


@contextlib.contextmanager
def asked(server: Server, number: int) -> Iterator[list[float]]:
    """So many connections, one after another, each with an answer; they stay open. The seconds that each took."""
    with contextlib.ExitStack() as stack:
        took = []
        for _ in range(number):
            began = time.monotonic()
            connection: http.client.HTTPConnection = stack.enter_context(contextlib.closing(server.connect()))
            assert send(connection, "POST", "/v1/embeddings", {"input": "a text", "model": "any"}).status == 200
            took.append(time.monotonic() - began)
        yield took


@pytest.mark.holds("Connections")
def test_connections_are_shared_out_equally(tmp_path: Path, reached: Reached) -> None:
    with four_frontends(tmp_path) as server, asked(server, 64):
        numbers = num_connections(server)
        reached("connections", f"64 connections one after another on 4 frontends: {numbers}")
        assert sum(numbers) == 64
        assert max(numbers) <= 40, numbers  # 16 each on a quiet machine; one frontend took 57 once
        assert min(numbers) >= 3, numbers


@pytest.mark.holds("Connections", "When a process dies")
def test_a_frontend_that_is_stopped_or_dead_delays_nobody_else(tmp_path: Path, reached: Reached) -> None:
    with four_frontends(tmp_path) as server, asked(server, 40):
        stopped = server.processes()["frontend 0"]
        os.kill(stopped, signal.SIGSTOP)
        with asked(server, 60) as took:
            reached("connections", f"one of 4 frontends is stopped: 60 new ones answered in {1000 * max(took):.0f} ms")
        seen = len(server.log.lines)
        os.kill(stopped, signal.SIGKILL)
        with asked(server, 60) as took:
            reached("connections", f"one of 4 frontends is killed: 60 new ones answered in {1000 * max(took):.0f} ms")
        server.log.wait_for("frontend 0 is ready", after=seen)
        with asked(server, 60):  # the new process has the fewest
            assert num_connections(server)[0] > 10
