"""Servers on a real Ray through a day: from none to three and back, deaths, and a start that fails."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.ray.cluster import Cluster, load, running, wait_until
from tests.server_e2e.running import PATIENCE

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

NUM_CLIENTS = 12
SERVER = """
engine = "fake"
fake-dim = 64
max-batch-tokens = 256
interactive-max-wait = 60.0
fake-tokens-per-second = 2500.0
"""
GROWING = f"""{SERVER}
[ray]
num_cpus = 0.1
min_replicas = 0
max_replicas = 3
target_tokens = 400
upscale_delay_seconds = 1.0
downscale_delay_seconds = 3.0
"""
TWO = f"""{SERVER}
[ray]
num_cpus = 0.1
min_replicas = 2
max_replicas = 2
"""


def test_from_none_to_three_and_back_no_request_is_lost(tmp_path: Path, reached: Callable[[str, str], None]) -> None:
    with running(GROWING, tmp_path) as cluster:
        assert cluster.servers() == []
        with load(cluster, num_clients=NUM_CLIENTS) as found:
            wait_until(lambda: len(cluster.servers()) == 3, seconds=120)
            before = found[200]
            wait_until(lambda: found[200] > before + 50)
        assert set(found) == {200}
        wait_until(lambda: cluster.servers() == [], seconds=120)
        assert cluster.embed("again").status == 200
        reached("Ray", f"{found[200]} requests, none lost")


def test_more_than_may_wait_for_a_first_server_are_429(tmp_path: Path) -> None:
    with running(f"{SERVER}[ray]\nnum_cpus = 0.1\nmin_replicas = 0\nmax_queued_requests = 4\n", tmp_path) as cluster:
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            replies = list(pool.map(lambda number: cluster.embed(f"{number}"), range(NUM_CLIENTS)))
        refused = [reply for reply in replies if reply.status != 200]
        assert 1 <= len(refused) < NUM_CLIENTS
        assert {(reply.status, reply.headers["retry-after"]) for reply in refused} == {(429, "2")}


@pytest.mark.faults
def test_what_a_killed_server_had_is_answered_by_another(tmp_path: Path, reached: Callable[[str, str], None]) -> None:
    with running(TWO, tmp_path) as cluster, load(cluster, num_clients=NUM_CLIENTS) as found:
        for victim_of in (lambda server: server, parent):
            wait_until(lambda: len(cluster.servers()) == cluster.num_known() == 2 and found[200] > 50)
            before = set(cluster.servers())
            os.kill(victim_of(min(before)), signal.SIGKILL)
            wait_until(lambda old=before: len(set(cluster.servers()) - old) == 1, seconds=120)  # type: ignore[misc]
    assert set(found) == {200}
    reached("Ray", f"{found[200]} requests through the death of a server and of a replica, none lost")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("server", "start", "message"),
    [
        ('model-id = "/nowhere"', 60, "the server ended at its start: .*/nowhere"),
        ('engine = "fake"\nfake-fault = ["hang@load"]', 3, "the server was not ready after 3 s"),
    ],
)
def test_a_start_that_fails_ends_in_a_line(tmp_path: Path, server: str, start: int, message: str) -> None:
    cluster = Cluster(f"{server}\n[ray]\nnum_cpus = 0.1\nstart_seconds = {start}\n", tmp_path)
    try:
        cluster.log.wait_for(message)
        assert cluster.process.wait(PATIENCE) == 1
    finally:
        cluster.close()
