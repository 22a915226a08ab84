"""A whole server as a test runs it: started by its command line, watched through its log, its processes and HTTP."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Seconds that a test waits for what should come at once: minutes, so that no verdict depends on what else is computed.
PATIENCE = 300.0
CACHE_HOME = "COMPILED_MODELS_OF_TESTS"  # the variable that names the folder for compiled models; see conftest.py
# what a server logs: where it listens, and that it is ready
ADDRESS = r"on https?://127\.0\.0\.1:(\d+)"
READY = r"INFO supervisor: ready$"


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Log:
    """What the server writes, line by line, with a way to wait for a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str, *, after: int = 0) -> tuple[re.Match[str], int]:
        """The first line from number `after` that has the pattern, and the number of the line after it."""

        def found() -> tuple[re.Match[str], int] | None:
            for number, line in enumerate(self.lines[after:], after + 1):
                if match := re.search(pattern, line):
                    return match, number
            return None

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, PATIENCE)
        if (result := found()) is None:
            raise AssertionError(f"the log has no {pattern!r}:\n" + "\n".join(self.lines))
        return result

    def join(self) -> None:
        self._reader.join(PATIENCE)

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class Server:
    """A running server."""

    def __init__(
        self,
        *flags: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.PIPE,
        wrapper: Sequence[str] = (),
    ) -> None:
        """The log is read from a pipe, unless `stderr` is another descriptor. `wrapper` is a command that starts it."""
        # sockets' paths are short, so not below pytest's own folder; a test that starts two servers shares it
        self.runtime = runtime = Path(tempfile.gettempdir()) / f"run-{hash(folder) & 0xFFFFFFFF:x}"
        runtime.mkdir(exist_ok=True, mode=0o700)
        self.process = subprocess.Popen(
            [
                *wrapper,
                *(sys.executable, "-P", "-m", "embedline", "serve", "--port", "0", "--prometheus-port", "0", *flags),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "XDG_RUNTIME_DIR": str(runtime),
                "XDG_CACHE_HOME": os.environ.get(CACHE_HOME, str(folder)),  # benchmarks start servers without pytest
                "EMBEDLINE_DRAIN_DELAY": "0",  # nothing balances
                "EMBEDLINE_DEVICES": "cpu",  # where nobody says otherwise: the same with and without a GPU
                "DTYPE": "float32",  # so that it is the same on a CPU with bfloat16
                **(environment or {}),
            },
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.log = Log(self.process)
        self.port = 0

    def wait_ready(self, *, after: int = 0) -> int:
        """Until it says that it is ready; the number of the log's next line."""
        if not self.port:
            self.port = int(self.log.wait_for(ADDRESS)[0][1])
        seen = self.log.wait_for(READY, after=after)[1]
        while self.request("GET", "/readyz").status != 200:
            assert self.process.poll() is None
        return seen

    def processes(self) -> dict[str, int]:
        """Its children by the title that `ps` shows, less "embedline: "."""
        found = {}
        for pid in children(self.process.pid):
            title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
            found[title.removeprefix("embedline: ")] = pid
        return found

    def kill(self, title: str) -> None:
        """SIGKILL one of its processes."""
        os.kill(self.processes()[title], signal.SIGKILL)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request on a connection of its own. Header names are given with _ for -."""
        with contextlib.closing(self.connect()) as connection:
            return send(connection, method, path, body, **headers)

    def embed(self, inputs: Any, **fields: Any) -> Reply:
        return self.request("POST", "/v1/embeddings", {"input": inputs, "model": "any", **fields})

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        self.log.join()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self.log.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
        shutil.rmtree(self.runtime, ignore_errors=True)


def send(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    """One request on an open connection. A body that is not bytes goes as JSON."""
    payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, payload, {"content-type": "application/json", **named})
    answer = connection.getresponse()
    return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def is_running(pid: int) -> bool:
    """Whether it is there and not a zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def serving(
    *flags: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    stdout: int = subprocess.DEVNULL,
    wrapper: Sequence[str] = (),
) -> Iterator[Server]:
    """A server that is ready, gone after the block. `stdout` is a descriptor for the request log."""
    server = Server(*flags, folder=folder, environment=environment, stdout=stdout, wrapper=wrapper)
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()
