"""Many mixed requests while processes are killed: every answer right, and memory flat. A planted leak is found."""

import contextlib
import random
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

from benchmarks.measuring.processes import tree
from tests.server_e2e.expected import FAKE
from tests.server_e2e.load import LOST_WITH_A_FRONTEND, Load
from tests.server_e2e.running import Server, serving

ROLES = ("engine 0", "tokenizer 0", "tokenizer 1", "batch manager 0", "frontend 0", "frontend 1")
FLAGS = (*FAKE, "--frontends", "2", "--tokenization-workers", "2")
STEP = 500  # requests
LEAK = 1000  # bytes a request, where one is planted: 160 for each of its 6.25 sequences on average
Reached = Callable[[str, str], None]
pytestmark = [pytest.mark.faults, pytest.mark.full, pytest.mark.timeout(7200)]


def resident_bytes(server: Server) -> int:
    """What the server's processes have in memory of their own, without what they share with files."""
    total = 0
    for pid in tree(server.process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
    return total


def slope(samples: list[tuple[int, int]]) -> float:
    """Bytes a request, as the median over all pairs of samples (Theil-Sen), which a few outliers don't move."""
    return median((later - earlier) / (end - start) for (start, earlier), (end, later) in combinations(samples, 2))


def advance(load: Load, num_requests: int) -> None:
    """Until so many more are answered. In steps, since each has to come within the test's patience."""
    for _ in range(num_requests // STEP):
        load.wait_for(STEP)


def memory_during(server: Server, load: Load, num_requests: int, *, num_samples: int = 20) -> Iterator[tuple[int, int]]:
    """Requests answered so far and bytes, so many times."""
    for _ in range(num_samples):
        advance(load, num_requests // num_samples)
        yield load.outcomes[200], resident_bytes(server)


@pytest.mark.holds("Any one process but the supervisor may be killed at any time", "Memory stays flat")
@pytest.mark.parametrize("num_requests", [100_000, pytest.param(4_000_000, marks=pytest.mark.nightly)])
def test_memory_stays_flat_and_every_answer_is_right(num_requests: int, tmp_path: Path, reached: Reached) -> None:
    """Kills in the first half, measured in the second: a new process grows at first."""
    chosen = random.Random(7)
    with serving(*FLAGS, folder=tmp_path) as server, Load(server, num_clients=16) as load:
        for _ in range(10):
            advance(load, num_requests // 20)
            seen, title = len(server.log.lines), chosen.choice(ROLES)
            server.kill(title)
            server.log.wait_for(f"{title} is ready", after=seen)
        samples = list(memory_during(server, load, num_requests // 2))

    lost = sum(count for outcome, count in load.outcomes.items() if outcome != 200)
    grew = slope(samples)
    reached(
        "R31b",
        f"{load.outcomes[200]:,} answers, {len(load.wrong)} wrong, {lost} lost with their frontend, "
        f"{grew:.0f} bytes a request",
    )
    assert not load.wrong
    assert set(load.outcomes) <= {200, *LOST_WITH_A_FRONTEND}
    assert lost <= 10 * load.num_clients
    assert grew < LEAK / 5


def test_a_leak_of_a_kilobyte_a_request_is_found(tmp_path: Path, reached: Reached) -> None:
    num_requests = 20_000
    leaking = (*FLAGS, "--fake-fault", "leak@tokens:0")
    with serving(*leaking, folder=tmp_path) as server, Load(server, num_clients=16) as load:
        advance(load, num_requests // 2)
        samples = list(memory_during(server, load, num_requests))

    grew = slope(samples)
    reached("R31b", f"with a planted leak, {grew:.0f} bytes a request")
    assert grew > LEAK / 2
