"""Two servers with one queue in Redis: what one accepted, the other answers for."""

from pathlib import Path

import pytest

from tests.server.jobs.served.asking import accepted, result
from tests.server.jobs.store.redis_server import redis_server
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, Server, serving

HELLO = {"input": "hello", "model": "any"}


def assert_batches_are_refused(server: Server) -> None:
    fields = {"endpoint": "/v1/embeddings", "input_file_id": "file-none", "completion_window": "24h"}
    answer = server.request("POST", "/v1/batches", fields)
    assert answer.status == 400, answer
    assert "--jobs-redis" in answer.json()["error"]["message"]


@pytest.mark.full
def test_two_servers_share_a_queue(tmp_path: Path) -> None:
    kept = ("--jobs", str(tmp_path / "kept"))
    folders = [tmp_path / name for name in ("redis", "first", "second")]
    for folder in folders:
        folder.mkdir()
    with redis_server(folders[0]) as url:
        flags, variables = (*FAKE, *kept), {"JOBS_REDIS": url}
        with (
            serving(*flags, folder=folders[1], environment=variables) as first,
            serving(*flags, folder=folders[2], environment=variables) as second,
        ):
            assert_batches_are_refused(first)
            ids = [accepted(first, HELLO) for _ in range(20)]
            assert {result(second, request_id).status for request_id in ids} == {200}
            first.process.kill()
            first.process.wait(PATIENCE)
            assert result(second, ids[0]).status == 200
            assert result(second, accepted(second, HELLO)).status == 200
