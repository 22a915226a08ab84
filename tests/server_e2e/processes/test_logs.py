"""What a whole server writes: a line for each request on standard output, its own log on standard error."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import Server, serving


def lines_of(tmp_path: Path, *flags: str, num_good: int = 30) -> list[dict[str, Any]]:
    """The request log of a server that was asked some things and then stopped in order."""
    path = tmp_path / "requests"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    with serving(*FAKE, "--frontends", "2", *flags, folder=tmp_path, stdout=descriptor) as server:
        ask(server, num_good)
        assert server.stop() == 0
    os.close(descriptor)
    return [json.loads(line) for line in path.read_text().splitlines()]


def ask(server: Server, num_good: int) -> None:
    for _ in range(num_good):
        assert server.request("POST", "/embeddings", {"input": "one text"}).status == 200
    assert server.request("POST", "/embeddings", {"input": 5}).status == 400
    assert server.request("GET", "/metrics").status == 200


@pytest.mark.holds("The request log")
def test_every_request_of_every_frontend_has_its_line_at_an_orderly_end(tmp_path: Path) -> None:
    lines = [line for line in lines_of(tmp_path) if line["route"] != "/readyz"]  # which may say 503 at first

    assert Counter((line["route"], line["status"]) for line in lines) == {
        ("/embeddings", 200): 30,
        ("/embeddings", 400): 1,
    }
    assert len({line["request_id"] for line in lines}) == 31
    assert all(
        line["total_ms"] >= line["tokenize_ms"] + line["compute_ms"] > 0 for line in lines if line["status"] == 200
    )


@pytest.mark.full
@pytest.mark.holds("The request log")
def test_only_errors(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "--request-log", "errors")

    assert [line["status"] for line in lines if line["route"] != "/readyz"] == [400]


@pytest.mark.full
@pytest.mark.holds("The request log")
def test_the_servers_own_log_as_json(tmp_path: Path) -> None:
    server = Server(*FAKE, "--json-output", "--request-log", "off", folder=tmp_path)
    try:
        server.log.wait_for('"message": "ready"')
        assert server.stop() == 0
        records = [json.loads(line) for line in server.log.lines]
    finally:
        server.close()

    assert {record["process"].rpartition(" ")[0] for record in records} >= {"batch manager", "engine"}
    assert {"supervisor"} <= {record["process"] for record in records}
    assert all({"ts", "level", "logger", "message"} <= record.keys() for record in records)
