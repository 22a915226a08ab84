"""Many clients that do not read large answers: the rows of most are not computed, and others are answered."""

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server_e2e.running import Server, serving
from tests.server_e2e.test_soak_faults import resident_bytes

NUM_CLIENTS = 100
NUM_OTHERS = 500  # requests, while answers wait
MAX_GROWTH = 200_000_000  # bytes, of all processes: one answer of 90 MB, and rows on their way
BODY = json.dumps({"input": [f"text {number}" for number in range(2048)]}).encode()
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
pytestmark = [pytest.mark.faults, pytest.mark.full]


@pytest.mark.holds("Limits", "Memory stays flat")
def test_rows_that_nobody_reads_are_not_computed(tmp_path: Path, reached: Callable[[str, str], None]) -> None:
    """Each answer has 90 MB as JSON and is made of 32 MiB of rows."""
    with serving("--engine", "fake", "--fake-dim", "4096", folder=tmp_path) as server, ExitStack() as open_sockets:
        assert server.embed(["a"] * 8).status == 200
        before = resident_bytes(server)
        clients = [open_sockets.enter_context(unread_request(server)) for _ in range(NUM_CLIENTS)]
        looks = []
        for _ in range(NUM_OTHERS):
            assert server.embed(["a"]).status == 200
            looks.append(resident_bytes(server))
        grown = max(looks) - before
        reached("hole i", f"{NUM_CLIENTS} clients that do not read: memory grew by {grown >> 20} MiB")
        assert grown < MAX_GROWTH
        for client in clients:
            client.close()
        assert server.embed(["a"] * 2048).status == 200


def unread_request(server: Server) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(HEAD % len(BODY) + BODY)
    return client
