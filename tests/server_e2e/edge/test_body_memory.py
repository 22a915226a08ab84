"""Bodies that are made to cost memory: each is refused, and a frontend never holds much more than a body may have."""

import contextlib
import json
import re
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server_e2e.expected import PAYLOAD_LIMIT
from tests.server_e2e.running import PATIENCE, Server

pytestmark = pytest.mark.full

MIB = 1 << 20
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def endless() -> Iterator[bytes]:
    """300 MiB in large chunks."""
    yield CHUNKED
    for _ in range(300):
        yield b"%x\r\n%b\r\n" % (MIB, b" " * MIB)
    yield b"0\r\n\r\n"


def million_chunks() -> Iterator[bytes]:
    """Of one byte each."""
    yield CHUNKED
    for _ in range(1000):
        yield b"1\r\n \r\n" * 1000
    yield b"0\r\n\r\n"


def bomb() -> Iterator[bytes]:
    """100 MiB of JSON in 100 kB."""
    packed = zlib.compress(json.dumps({"input": "x" * 100 * MIB}).encode(), wbits=31)
    yield HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    yield packed


def frontends(server: Server) -> list[Path]:
    """Their folders in /proc."""
    return [Path(f"/proc/{pid}") for title, pid in server.processes().items() if title.startswith("frontend")]


def peak_bytes(process: Path) -> int:
    """The most memory that it had since `forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(process: Path) -> None:
    (process / "clear_refs").write_text("5")


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(("body", "status"), [(endless, 413), (million_chunks, 413), (bomb, 413)])
def test_the_most_memory_that_a_body_takes(
    fake_server: Server, body: Callable[[], Iterator[bytes]], status: int
) -> None:
    for _ in range(100):  # what it needs for usual requests it has after these
        assert fake_server.embed(["hello"] * 100).status == 200
    processes = frontends(fake_server)
    for process in processes:
        forget_peak(process)
    before = [peak_bytes(process) for process in processes]

    answer = sent(fake_server, body())

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    grown = max(peak_bytes(process) - least for process, least in zip(processes, before, strict=True))
    assert grown <= PAYLOAD_LIMIT + 4 * MIB, grown
    assert fake_server.embed("hello").status == 200


def sent(server: Server, parts: Iterator[bytes]) -> bytes:
    """The beginning of the answer to all of it; the server may have closed the connection before the end."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        return connection.recv(4096)
