"""Three servers behind a balancer with our configuration: each is lost and comes back, and no request is lost."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.load import Load
from tests.server_e2e.processes.balancer import CONFIGURATIONS, balancing
from tests.server_e2e.running import Server

pytestmark = [pytest.mark.faults, pytest.mark.full]

NUM_SERVERS, NUM_CLIENTS = 3, 8
AFTER = 10.0  # seconds from a fault on, of which the p99 is reported
FLAGS = (*FAKE, "--fake-cost-ms", "5", "--frontends", "1", "--tokenization-workers", "1")
_ANSWERED = re.compile(r'embedline_requests_total\{[^}]*route="/v1/embeddings"[^}]*\} (\d+)')


def started(folder: Path, port: int = 0) -> Server:
    server = Server(*FLAGS, "--port", str(port), folder=folder, environment={"EMBEDLINE_DRAIN_DELAY": "3"})
    server.wait_ready()
    return server


def num_answered(server: Server) -> int:
    return sum(map(int, _ANSWERED.findall(server.request("GET", "/metrics").body.decode())))


def until_in_use(server: Server, load: Load) -> None:
    """More requests have come to it than one from each client, which it may have held."""
    before = num_answered(server)
    while num_answered(server) <= before + NUM_CLIENTS:
        load.wait_for(20)


def signal_all(server: Server, number: int) -> None:
    for pid in (server.process.pid, *server.processes().values()):
        os.kill(pid, number)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Those that run; a test puts another one in the place of one that it ended."""
    with ThreadPoolExecutor() as pool:
        running = list(pool.map(started, [tmp_path_factory.mktemp("server") for _ in range(NUM_SERVERS)]))
    try:
        yield running
    finally:
        for server in running:
            server.close()


@pytest.mark.holds("Readiness", "Shutdown")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_request_is_lost(
    name: str, servers: list[Server], tmp_path: Path, reached: Callable[[str, str], None]
) -> None:
    killed, stopped, drained = servers
    ports = [server.port for server in servers]
    with (
        balancing(name, ports, tmp_path) as balancer,
        Load(balancer, NUM_CLIENTS) as load,
    ):
        for server in servers:
            until_in_use(server, load)

        faults = {"killed": time.monotonic()}
        killed.process.kill()
        killed.close()
        load.wait_until(faults["killed"] + AFTER)
        servers[0] = started(tmp_path, killed.port)
        until_in_use(servers[0], load)

        faults["stopped"] = time.monotonic()
        signal_all(stopped, signal.SIGSTOP)
        load.wait_until(faults["stopped"] + AFTER)  # long enough for the balancer to notice
        signal_all(stopped, signal.SIGCONT)
        until_in_use(stopped, load)

        faults["drained"] = time.monotonic()
        assert drained.stop() == 0
        drained.close()
        load.wait_until(faults["drained"] + AFTER)
        servers[2] = started(tmp_path, drained.port)
        until_in_use(servers[2], load)
    assert load.outcomes.keys() == {200}
    assert not load.wrong
    reached(f"balancer {name}", f"0 of {load.outcomes[200]} requests lost")
    for fault, began in faults.items():
        reached(
            f"balancer {name}, one {fault}", f"p99 of the {AFTER:g} s after it {1000 * load.p99(began, AFTER):.0f} ms"
        )
