"""`embedline ray serve` with a Ray of its own, as a test runs it."""

import contextlib
import csv
import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server_e2e.running import PATIENCE, ROOT, Log, Reply, send

_ENVIRONMENT = ROOT / ".clients/ray"
READY = r"ready on http://127\.0\.0\.1:\d+"
_START_PATIENCE = 2 * PATIENCE  # a request may wait for the start of a first server
_WORDS = "word " * 150
_SUPERVISOR = "embedline: supervisor"


def python_with_ray() -> str:
    """Skips the test where Ray is not installed, or not whole."""
    if not (_ENVIRONMENT / ".made").exists():
        pytest.skip(f"needs {_ENVIRONMENT} (make test-ray)")
    return str(_ENVIRONMENT / "bin/python")


class Cluster:
    """A Ray with servers in it."""

    def __init__(self, config: str, folder: Path) -> None:
        """`config` without host and port."""
        python = python_with_ray()
        self.port, self._stats, metrics = _free_ports(3)
        file = folder / "embedline.toml"
        file.write_text(config.replace("[ray]", f"[ray]\nport = {self.port}\n"))
        self._runtime = tempfile.mkdtemp(prefix="ray-")  # paths of sockets are short
        proxy = {"CONFIG_FILE_LOC": "haproxy.cfg", "SOCKET_PATH": "admin.sock", "SERVER_STATE_FILE": "server-state"}
        self.process = subprocess.Popen(
            [python, "-P", "-m", "embedline", "ray", "serve", str(file)],
            env={
                **environment(self._runtime),
                **{f"RAY_SERVE_HAPROXY_{name}": f"{self._runtime}/{path}" for name, path in proxy.items()},
                "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": self._runtime,
                "RAY_SERVE_HAPROXY_STATS_PORT": str(self._stats),
                "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
            },
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.log = Log(self.process)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_START_PATIENCE)
        with contextlib.closing(connection):
            return send(connection, method, path, body, **headers)

    def embed(self, text: str, **fields: Any) -> Reply:
        return self.request("POST", "/v1/embeddings", {"input": text, "model": "any", **fields})

    def servers(self) -> list[int]:
        """The processes of the replicas' servers that have begun to load."""
        return servers_below(self.process.pid)

    def num_known(self) -> int:
        """Replicas that HAProxy sends requests to."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._stats}/stats;csv", timeout=PATIENCE) as page:
            rows = csv.reader(page.read().decode().splitlines())
        return sum(row[1].startswith("SERVE_REPLICA") and row[17].startswith("UP") for row in rows)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.log.join()
            assert self.process.stderr is not None
            self.process.stderr.close()
            shutil.rmtree(self._runtime, ignore_errors=True)


@contextlib.contextmanager
def running(config: str, folder: Path) -> Iterator[Cluster]:
    """One that is ready, gone after the block."""
    cluster = Cluster(config, folder)
    try:
        cluster.log.wait_for(READY)
        yield cluster
    finally:
        cluster.close()


def wait_until(met: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
    turn = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if met():
            return
        turn.wait(0.1)
    raise AssertionError("it never came")


@contextlib.contextmanager
def load(cluster: Cluster, *, num_clients: int) -> Iterator[Counter[object]]:
    """Clients that send the next request when one is answered, while the block runs; what came back."""
    found: Counter[object] = Counter()
    stop = threading.Event()

    def ask(client: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                found[cluster.embed(f"{client} {number} {_WORDS}").status] += 1
            except (OSError, http.client.HTTPException) as error:
                found[type(error).__name__] += 1

    with ThreadPoolExecutor(num_clients) as pool:
        asking = [pool.submit(ask, client) for client in range(num_clients)]
        try:
            yield found
        finally:
            stop.set()
    for one in asking:
        one.result()


def environment(runtime: str) -> dict[str, str]:
    """Of a command that starts a Ray of its own, with its files in this folder."""
    own = {"RAY_ADDRESS": "local", "RAY_TMPDIR": runtime, "XDG_RUNTIME_DIR": runtime}
    return {**os.environ, **own, "PYTHONPATH": str(ROOT), "EMBEDLINE_DEVICES": "cpu"}


def servers_below(pid: int) -> list[int]:
    """The servers that have begun to load, in processes of this one."""
    return [found for found in _descendants(pid) if _title(found).startswith(_SUPERVISOR)]


def _free_ports(number: int) -> list[int]:
    """Ports for programs that can't be told to take a free one."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [its.getsockname()[1] for its in sockets]


def _descendants(pid: int) -> list[int]:
    """Children of any of its threads, and theirs."""
    own: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            own += map(int, listed.read_text().split())
    return [found for child in own for found in (child, *_descendants(child))]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
