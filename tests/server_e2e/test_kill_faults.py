"""The same process is killed again and again under 64 clients: what is lost, how soon it is seen and back."""

import http.client
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server_e2e.expected import COMPACT, FAKE, SPREAD
from tests.server_e2e.load import LOST_WITH_A_FRONTEND, Load
from tests.server_e2e.processes.test_process_faults import free_port
from tests.server_e2e.running import PATIENCE, send, serving

Reached = Callable[[str, str], None]
pytestmark = [pytest.mark.faults, pytest.mark.full]


def until_status(port: int, wanted: int, began: float) -> float:
    """Seconds since `began` until /readyz has this status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    while send(connection, "GET", "/readyz").status != wanted:
        assert time.monotonic() - began < PATIENCE
    connection.close()
    return time.monotonic() - began


@pytest.mark.holds("Any one process but the supervisor may be killed at any time")
def test_twenty_kills_of_the_engine(tmp_path: Path, reached: Reached) -> None:
    unready: list[float] = []
    back: list[float] = []
    with serving(*FAKE, "--fake-cost-ms", "5", folder=tmp_path) as server, Load(server, num_clients=64) as load:
        for _ in range(20):
            load.wait_for(500)
            began = time.monotonic()
            server.kill("engine 0")
            unready.append(until_status(server.port, 503, began))
            back.append(until_status(server.port, 200, began))
    refused = sum(count for outcome, count in load.outcomes.items() if outcome != 200)
    total = load.outcomes.total()
    reached(
        "R1",
        f"20 kills: {total:,} requests, {len(load.wrong)} wrong, {refused} refused; /readyz 503 after at most "
        f"{1000 * max(unready):.0f} ms, ready again after at most {max(back):.1f} s",
    )
    assert not load.wrong
    # 500: a request that was alone with the engine when it died a second time is taken for the cause
    assert set(load.outcomes) <= {200, 500, 503}
    assert refused <= total / 1000


@pytest.mark.holds("Any one process but the supervisor may be killed at any time", "When a process dies", "Readiness")
@pytest.mark.parametrize(
    ("topology", "title"),
    [
        *((SPREAD, title) for title in ("engine 0", "tokenizer 0", "batch manager 0", "frontend 0")),
        *((COMPACT, title) for title in ("engine 0", "frontend 0")),
    ],
)
def test_five_kills_of_each_process_in_each_topology(topology: tuple[str, ...], title: str, tmp_path: Path) -> None:
    """The only one of its kind: the supervisor says that the server is not ready, and then that it is."""
    monitor = free_port()
    flags = (*FAKE, *topology, "--frontends", "1", "--fake-cost-ms", "2", "--prometheus-port", str(monitor))
    with serving(*flags, folder=tmp_path) as server, Load(server) as load:
        for _ in range(5):
            # so long that nothing is on its second try when the next one dies: that would be blamed for it
            load.wait_for(400)
            server.kill(title)
            began = time.monotonic()
            until_status(monitor, 503, began)
            until_status(monitor, 200, began)
    assert not load.wrong
    lost_with_it = LOST_WITH_A_FRONTEND if title == "frontend 0" else set()
    assert set(load.outcomes) <= {200, *lost_with_it}


@pytest.mark.holds("Any one process but the supervisor may be killed at any time")
@pytest.mark.parametrize("num_kills", [20, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_tokenizer_is_killed_each_second(num_kills: int, tmp_path: Path, reached: Reached) -> None:
    stopped = threading.Event()  # never set: its wait is the second
    with serving(*FAKE, *SPREAD, folder=tmp_path) as server, Load(server, num_clients=64) as load:
        for _ in range(num_kills):
            seen = len(server.log.lines)
            server.kill("tokenizer 0")
            server.log.wait_for("tokenizer 0 is ready", after=seen)
            stopped.wait(1.0)
        load.wait_for(100)
    failed = {outcome: count for outcome, count in load.outcomes.items() if outcome != 200}
    reached(
        "R3",
        f"{num_kills} kills: {load.outcomes.total():,} requests, {len(load.wrong)} wrong, {failed or 'none'} failed",
    )
    assert not load.wrong
    assert not failed
