"""A day in the life of a server, in the simulator: load that rises and falls, spikes, keys, clients that leave, engines
that die. Every request ends, and nothing is left behind."""

import math
import random

import pytest

from server.settings.api_keys import ApiKey
from tests.batch_manager.overload.loads import CAPACITY, bulk, queries, simulator
from tests.batch_manager.simulator import Load, Outcome, Retry, Simulator
from tests.tiers import full

KEYS = [ApiKey("a", b"1"), ApiKey("b", b"2", weight=3.0), ApiKey("c", b"3", tokens_per_minute=int(CAPACITY))]


def hours(chance: random.Random, *, num_hours: int, seconds: float) -> list[Load]:
    """What comes in each hour, from a fifth to five times the capacity. An hour has so many seconds, to have fewer
    requests."""
    loads = []
    for hour in range(num_hours):
        times = 0.6 + 0.4 * math.sin(2 * math.pi * hour / 24) + chance.choice([0, 0, 0, 1, 4])
        first, last = hour * seconds, (hour + 1) * seconds
        for key in KEYS:
            common = {"key": key.name, "first": first, "last": last, "retry": chance.choice(list(Retry))}
            timeout = chance.choice([0.5, 2.0, math.inf])
            leaves_within = chance.choice([0.0, 3.0])
            loads.append(queries(times / len(KEYS) / 2, timeout=timeout, leaves_within=leaves_within, **common))
            loads.append(bulk(times / len(KEYS) / 2, timeout=chance.choice([20.0, math.inf]), **common))
    return loads


def check(run: Simulator) -> None:
    """Conservation: whatever was let in has one end."""
    for outcome in run.outcomes.values():
        ended = len(outcome.latencies) + outcome.num_late + len(outcome.refusals) + outcome.num_left
        assert ended == outcome.num_admitted
        _check_waits(outcome)
    assert run.num_unanswered == 0
    assert run.scheduler.models[0].queued_tokens == [0, 0]
    assert not run.page.admitted_tokens.any()
    assert not run.page.admitted_by_key.any()
    assert not run.page.computing_tokens.any()


def _check_waits(outcome: Outcome) -> None:
    """Nobody waits for longer than the budget, what engines' deaths add, and a batch."""
    if outcome.latencies:
        assert max(outcome.latencies) <= 300 + 60


@pytest.mark.holds("Every accepted request ends exactly once")
@pytest.mark.parametrize(
    ("seed", "num_hours", "least"),
    [(1, 3, 1_500), *full((2, 120, 10**5)), pytest.param(3, 1200, 10**6, marks=pytest.mark.nightly)],
)
@pytest.mark.timeout(1200)
def test_every_request_of_a_day_ends(seed: int, num_hours: int, least: int) -> None:
    chance = random.Random(seed)
    run = simulator(seed=seed, num_engines=2, keys=KEYS, num_frontends=2)
    seconds = num_hours * 4.0
    for hour in range(num_hours):
        run.kill(chance.randrange(2), after=4.0 * hour + 1.0, back_after=chance.uniform(0.1, 2.9))
    run.run(hours(chance, num_hours=num_hours, seconds=4.0), seconds)
    assert sum(outcome.num_offered for outcome in run.outcomes.values()) >= least
    check(run)
