"""How many requests in flight: a queueing server in virtual time, and what the client makes of it."""

import pytest

from embedline.client.endpoints import ConcurrencyLimit
from embedline.client.sender import HedgeBudget


def settle(limit: ConcurrencyLimit, *, engines: int, seconds: float = 0.1, rounds: int = 60) -> list[int]:
    """What the limit becomes at a server that computes so many requests at once and queues the others."""
    seen = []
    for _ in range(rounds):
        in_flight = limit.current
        for _ in range(max(4, in_flight)):
            limit.answered(seconds * max(1.0, in_flight / engines))
        seen.append(limit.current)
    return seen


@pytest.mark.parametrize("engines", [1, 2, 8, 20])
def test_all_engines_are_busy_and_few_requests_wait(engines: int) -> None:
    last = settle(ConcurrencyLimit(64), engines=engines)[-10:]
    assert min(last) >= min(engines, 64)
    assert max(last) <= engines + 8


def test_it_stays_within_its_bounds() -> None:
    assert max(settle(ConcurrencyLimit(5), engines=100)) == 5
    assert settle(ConcurrencyLimit(1), engines=1)[-1] == 1


def test_a_server_that_becomes_slower_for_good_is_not_taken_for_a_queue_for_ever() -> None:
    limit = ConcurrencyLimit(64)
    settle(limit, engines=16)
    assert min(settle(limit, engines=16, seconds=0.5, rounds=200)[-10:]) >= 12


def test_refusals_cut_it_once_a_round_and_it_comes_back() -> None:
    limit = ConcurrencyLimit(64)
    before = limit.current
    for _ in range(before):
        limit.refused()
    assert limit.current == int(0.7 * before)
    for _ in range(200):
        limit.refused()
    assert limit.current == 1
    assert settle(limit, engines=8)[-1] >= 8


def test_hedges_are_a_share_of_requests_and_one_at_first() -> None:
    budget = HedgeBudget()
    budget.count_request()
    assert [budget.take(0.1), budget.take(0.1)] == [True, False]
    for _ in range(19):
        budget.count_request()
    assert [budget.take(0.1), budget.take(0.1)] == [True, False]
    assert not HedgeBudget().take(0.0)
