"""A Redis of the tests' own, in a folder, over a Unix socket."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

READY = b"eady to accept connections"


@contextlib.contextmanager
def redis_server(folder: Path, **settings: str) -> Iterator[str]:
    """Its URL. Skips where there is no redis-server."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    socket = folder / "redis.sock"
    values = {"port": "0", "unixsocket": str(socket), "dir": str(folder), "save": "", "appendonly": "yes"}
    values |= {"appendfsync": "always", **settings}
    words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]
    with subprocess.Popen([program, *words], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert any(READY in line for line in server.stdout), "redis-server ended"
            yield f"unix://{socket}"
        finally:
            server.kill()
