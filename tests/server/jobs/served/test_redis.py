"""Two servers with one queue in Redis and one folder: what one accepted, the other answers for."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.server.jobs.served.asking import accepted, result
from tests.server.jobs.served.test_batches_sdk import batch_of, client, ended, lines, uploaded
from tests.server.jobs.store.redis_server import redis_server
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, Server, serving

HELLO = {"input": "hello", "model": "any"}


@contextlib.contextmanager
def two_servers(folder: Path) -> Iterator[tuple[Server, Server]]:
    """With one Redis and one folder."""
    folders = [folder / name for name in ("redis", "first", "second")]
    for one in folders:
        one.mkdir()
    with redis_server(folders[0]) as url:
        flags, variables = (*FAKE, "--jobs", str(folder / "kept")), {"EMBEDLINE_JOBS_REDIS": url}
        with (
            serving(*flags, folder=folders[1], environment=variables) as first,
            serving(*flags, folder=folders[2], environment=variables) as second,
        ):
            yield first, second


@pytest.mark.full
def test_two_servers_share_a_queue_and_batches(tmp_path: Path) -> None:
    with two_servers(tmp_path) as (first, second):
        ids = [accepted(first, HELLO) for _ in range(20)]
        assert {result(second, request_id).status for request_id in ids} == {200}
        batch = batch_of(client(first), uploaded(client(first), lines(200)).id)
        assert_whole(client(second), batch.id, 200)
        long = batch_of(client(first), uploaded(client(second), lines(20_000)).id)
        for one in (first, second):  # whichever runs it
            client(one).batches.cancel(long.id)
        cancelled = ended(client(second), long.id)
        assert cancelled.status == "cancelled"
        first.process.kill()
        first.process.wait(PATIENCE)
        assert result(second, ids[0]).status == 200
        assert result(second, accepted(second, HELLO)).status == 200


@pytest.mark.faults
@pytest.mark.nightly
def test_a_batch_goes_on_at_another_server_after_a_kill(tmp_path: Path) -> None:
    """After the minute that a claim lasts."""
    with two_servers(tmp_path) as (first, second):
        batch = batch_of(client(first), uploaded(client(first), lines(50_000)).id)
        while (counts := client(second).batches.retrieve(batch.id).request_counts) is None or counts.completed < 500:
            pass
        its_server, other = sorted((first, second), key=lambda one: f"{batch.id} begins" not in str(one.log.lines))
        its_server.process.kill()
        its_server.process.wait(PATIENCE)
        assert_whole(client(other), batch.id, 50_000, seconds=200)


def assert_whole(api: openai.OpenAI, batch_id: str, count: int, *, seconds: float = PATIENCE) -> None:
    batch = ended(api, batch_id, seconds=seconds)
    assert batch.output_file_id is not None
    found = [json.loads(line)["custom_id"] for line in api.files.content(batch.output_file_id).text.splitlines()]
    assert found == [f"c{number}" for number in range(count)]
