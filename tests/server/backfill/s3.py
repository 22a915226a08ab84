"""A server that speaks S3's protocol, and jobs that reach it."""

import contextlib
import http.client
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.backfill.jobs import command
from tests.server_e2e.running import PATIENCE, ROOT, Log

PYTHON = Path(os.environ.get("EMBEDLINE_CLIENTS", ROOT / ".clients")) / "s3/bin/python"
_BUCKET = "bucket"
_ANYBODY = {"Authorization": "AWS any:any"}  # the server takes whatever says who asks
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}


class S3:
    """With one bucket."""

    def __init__(self, log: Log) -> None:
        self.log = log
        found, _ = log.wait_for(r"Running on http://127\.0\.0\.1:(\d+)")
        self._port = int(found[1])
        self._ask("PUT", "", b"")

    def url(self, key: str) -> str:
        return f"s3://{_BUCKET}/{key}"

    def put(self, key: str, content: bytes) -> None:
        self._ask("PUT", key, content)

    def get(self, key: str) -> bytes:
        return self._ask("GET", key)

    def delete(self, key: str) -> None:
        self._ask("DELETE", key)

    def names(self, prefix: str) -> list[str]:
        """Below it, in order: of at most 1,000."""
        listing = self._ask("GET", f"?list-type=2&prefix={prefix}/").decode()
        return sorted(re.findall(rf"<Key>{prefix}/([^<]+)</Key>", listing))

    def until_parts_are_put(self, count: int, *, after: int) -> int:
        """The number of the line of the log after the last of so many."""
        for _ in range(count):
            _, after = self.log.wait_for(r"PUT /bucket/\S+\.parquet", after=after)
        return after

    @property
    def environment(self) -> dict[str, str]:
        """How S3's own library reaches it."""
        return {**_CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", "NO_PROXY": "*"}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """The command, with S3's own library."""
        return command(*arguments, python=PYTHON, environment=self.environment)

    def _ask(self, method: str, key: str, content: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, f"/{_BUCKET}/{key}" if key else f"/{_BUCKET}", content, _ANYBODY)
            answer = connection.getresponse()
            body = answer.read()
        assert answer.status < 300, (answer.status, body)
        return body


@contextlib.contextmanager
def running_s3() -> Iterator[S3]:
    """Skips where it is not installed."""
    if not PYTHON.exists():
        pytest.skip(f"S3 needs {PYTHON} (make .clients/s3/.made)")
    process = subprocess.Popen(
        [PYTHON.with_name("moto_server"), "-H", "127.0.0.1", "-p", "0"],
        env={**os.environ, **_CREDENTIALS, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = Log(process)
    try:
        yield S3(log)
    finally:
        process.kill()
        process.wait(PATIENCE)
        log.join()
        assert process.stderr is not None
        process.stderr.close()
