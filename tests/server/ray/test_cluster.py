"""Servers as replicas of Ray Serve, on a real Ray: rows, refusals, growth from nothing and back, deaths."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.server.ray.cluster import Cluster, running
from tests.server_e2e.expected import rows_of

pytestmark = [pytest.mark.ray, pytest.mark.full, pytest.mark.timeout(300)]

ONE = """
engine = "fake"
fake-dim = 64
fake-tokens-per-second = 2000.0
interactive-max-wait = 1.0
max-batch-tokens = 256
[ray]
num_cpus = 0.2
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(ONE, tmp_path_factory.mktemp("ray")) as cluster:
        yield cluster


def test_rows_are_the_servers_own_to_the_byte(one: Cluster) -> None:
    reply = one.embed("hello", encoding_format="bytes")
    assert (reply.status, reply.headers["x-embedline-shape"]) == (200, "1,64")
    assert np.array_equal(np.frombuffer(reply.body, "<f4"), rows_of(["hello"])[0])


def test_a_large_body_passes_whole(one: Cluster) -> None:
    reply = one.request("POST", "/v1/embeddings", {"input": ["hello " * 100_000], "model": "any", "dimensions": 4})
    assert (reply.status, reply.json()["usage"]["total_tokens"] > 0) == (200, True)


def test_overload_is_the_servers_own_429(one: Cluster) -> None:
    with ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(lambda number: one.embed(f"{number} " + "word " * 200), range(64)))
    refused = [reply for reply in replies if reply.status == 429]
    assert {reply.status for reply in replies} == {200, 429}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert refused[0].json()["error"]["type"]
