"""What a whole server writes: a line for each request on standard output, its own log on standard error."""

import json
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server_e2e.expected import FAKE, SPREAD
from tests.server_e2e.running import PATIENCE, Server, serving

SECRET = "QXZJ-9173-secret"
PATH = "/v1/embeddings"


def lines_of(tmp_path: Path, *flags: str, ask: Callable[[Server], None]) -> tuple[list[dict[str, Any]], list[str]]:
    """The request log and the log of a server that was asked and then stopped in order."""
    path = tmp_path / "requests"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    with serving(*FAKE, "--frontends", "2", *flags, folder=tmp_path, stdout=descriptor) as server:
        ask(server)
        assert server.stop() == 0
    os.close(descriptor)
    return [json.loads(line) for line in path.read_text().splitlines()], server.log.lines


def ask(server: Server) -> None:
    for _ in range(30):
        assert server.request("POST", "/embeddings", {"input": "one text"}).status == 200
    assert server.request("POST", "/embeddings", {"input": 5}).status == 400
    assert server.request("GET", "/metrics").status == 200


def ask_with_a_secret(server: Server) -> None:
    """Whatever is wrong and wherever it stands."""
    for body in (SECRET.encode(), {"input": SECRET}, {"input": [SECRET, 5]}, {"input": "a", "dimensions": SECRET}):
        server.request("POST", PATH, body)
    for headers in ({"request_timeout_ms": SECRET}, {"x_request_id": f"{SECRET} {SECRET}"}, {"accept": SECRET}):
        server.request("POST", PATH, {"input": SECRET, "model": SECRET, "user": SECRET}, **headers)
    for path in (f"/{SECRET}", f"/readyz?{SECRET}", f"{PATH}?{SECRET}"):
        server.request("POST", path, {"input": SECRET})
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(f"GET /{SECRET} {SECRET} {SECRET}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 400"


@pytest.mark.full
@pytest.mark.holds("The request log", "Errors")
def test_every_request_of_every_frontend_has_its_line_at_an_orderly_end_and_no_line_repeats_any(tmp_path: Path) -> None:
    def ask_both(server: Server) -> None:
        ask(server)
        ask_with_a_secret(server)

    lines, log = lines_of(tmp_path, "--log-level", "debug", ask=ask_both)

    asked = [line for line in lines if line["route"] == "/embeddings"]
    assert Counter(line["status"] for line in asked) == {200: 30, 400: 1}
    assert len({line["request_id"] for line in asked}) == 31
    assert all(
        line["total_ms"] >= line["tokenize_ms"] + line["compute_ms"] > 0 for line in asked if line["status"] == 200
    )
    assert len(lines) > 31 + 10
    assert SECRET not in json.dumps(lines) + "\n".join(log)


@pytest.mark.full
@pytest.mark.holds("The request log")
def test_only_errors(tmp_path: Path) -> None:
    lines, _ = lines_of(tmp_path, "--request-log", "errors", ask=ask)

    assert [line["status"] for line in lines if line["route"] != "/readyz"] == [400]


@pytest.mark.full
@pytest.mark.holds("The request log")
def test_the_servers_own_log_as_json(tmp_path: Path) -> None:
    server = Server(*FAKE, *SPREAD, "--json-output", "--request-log", "off", folder=tmp_path)
    try:
        server.log.wait_for('"message": "ready"')
        assert server.stop() == 0
        records = [json.loads(line) for line in server.log.lines]
    finally:
        server.close()

    assert {record["process"].rpartition(" ")[0] for record in records} >= {"batch manager", "engine"}
    assert {"supervisor"} <= {record["process"] for record in records}
    assert all({"ts", "level", "logger", "message"} <= record.keys() for record in records)
