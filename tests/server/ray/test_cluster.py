"""Servers as replicas of Ray Serve, on a real Ray, through a short day; test_cluster_whole.py has a longer one."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.server.ray.cluster import Cluster, load, running, wait_until
from tests.server_e2e.expected import rows_of

pytestmark = [pytest.mark.ray, pytest.mark.full, pytest.mark.faults]

NUM_TOO_MANY = 64
CONFIG = """
engine = "fake"
fake-dim = 64
fake-tokens-per-second = 2500.0
interactive-max-wait = 3.0
max-batch-tokens = 256
[ray]
num_cpus = 0.1
min_replicas = 0
max_replicas = 2
target_tokens = 400
upscale_delay_seconds = 1.0
downscale_delay_seconds = 3.0
"""


def rows_are_the_servers_own_to_the_byte(cluster: Cluster) -> None:
    reply = cluster.embed("hello", encoding_format="bytes")
    assert (reply.status, reply.headers["x-embedline-shape"]) == (200, "1,64")
    assert np.array_equal(np.frombuffer(reply.body, "<f4"), rows_of(["hello"])[0])


def a_large_body_passes_whole(cluster: Cluster) -> None:
    body = {"input": ["hello " * 100_000], "model": "any", "dimensions": 4}
    reply = cluster.request("POST", "/v1/embeddings", body)
    assert (reply.status, reply.json()["usage"]["total_tokens"] > 0) == (200, True)


def overload_is_the_servers_own_429(cluster: Cluster) -> None:
    with ThreadPoolExecutor(NUM_TOO_MANY) as pool:
        replies = list(pool.map(lambda number: cluster.embed(f"{number} " + "word " * 400), range(NUM_TOO_MANY)))
    refused = [reply for reply in replies if reply.status == 429]
    assert {reply.status for reply in replies} == {200, 429}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert refused[0].json()["error"]["type"]


def the_death_of_a_server_loses_nothing(cluster: Cluster, num_answered: Callable[[], int]) -> None:
    before, answered = set(cluster.servers()), num_answered()
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: bool(set(cluster.servers()) - before) and num_answered() > answered + 50, seconds=120)


def test_a_day_from_none_to_two_and_back(tmp_path: Path, reached: Callable[[str, str], None]) -> None:
    with running(CONFIG, tmp_path) as cluster:
        assert cluster.servers() == []
        rows_are_the_servers_own_to_the_byte(cluster)  # by the first server, for which the request waits
        a_large_body_passes_whole(cluster)
        with load(cluster, num_clients=6) as found:
            wait_until(lambda: cluster.num_known() == 2, seconds=120)
            the_death_of_a_server_loses_nothing(cluster, lambda: found[200])
        assert set(found) == {200}
        overload_is_the_servers_own_429(cluster)
        wait_until(lambda: cluster.servers() == [], seconds=120)
        reached("Ray", f"{found[200]} requests from none to two servers and through a death, none lost")
