"""Disks without room: under the logs, and under the cache of compiled models. The server starts and answers."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE, SPREAD
from tests.server_e2e.processes.test_process_faults import free_port, until_answered
from tests.server_e2e.running import PATIENCE, Server, serving

pytestmark = [pytest.mark.faults, pytest.mark.full]


def may_mount() -> bool:
    """Whether this user may mount a small file system in a namespace of its own."""
    program = shutil.which("unshare")
    command = [str(program), "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return program is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.holds("The log", "The request log")
@pytest.mark.parametrize("what", ["/dev/full", "a file of 4 KiB at most"])
def test_logs_that_can_not_be_written_stop_nothing(what: str, tmp_path: Path) -> None:
    file = what if what == "/dev/full" else str(tmp_path / "log")
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    port = free_port()
    wrapper = () if what == "/dev/full" else ("prlimit", "--fsize=4096")
    flags = (*FAKE, *SPREAD, "--frontends", "1", "--port", str(port), "--log-level", "debug")
    server = Server(*flags, folder=tmp_path, stdout=descriptor, stderr=descriptor, wrapper=wrapper)
    with contextlib.closing(server):
        server.port = port
        until_answered(server)
        for _ in range(50):
            assert server.embed("a text").status == 200
        server.kill("tokenizer 0")
        for _ in range(50):
            assert server.embed("a text").status == 200
        dropped = "embedline_log_lines_dropped_total"
        while f"{dropped} 0.0" in (page := server.request("GET", "/metrics").body.decode()):  # counts come in time
            assert dropped in page
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    os.close(descriptor)


@pytest.mark.skipif(not may_mount(), reason="no file system may be mounted here")
@pytest.mark.holds("Engines on a CPU")
def test_a_cache_without_room_costs_the_cache_and_not_the_engine(tmp_path: Path) -> None:
    """Whatever is cut short on a full disk must not be loaded, now or later."""
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    mount = f'mount -t tmpfs -o size=1m,mode=0700 tmpfs "{small}" && exec "$@"'
    wrapper = ("unshare", "-rm", "sh", "-c", mount, "sh")
    with serving("--frontends", "1", "--compiled-cache", str(small), folder=tmp_path, wrapper=wrapper) as server:
        server.log.wait_for(r"WARNING engine 0: the model is not cached: it takes up to \d+ MiB, and 1 MiB are free")
        server.log.wait_for("runs on the engine openvino")
        assert server.embed("a text").status == 200
        assert server.stop() == 0
