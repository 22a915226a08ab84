"""More work than the engines can do, in the simulator: nearly all they do is answered in time, and those that were
refused find room when they come back. The same loads are put on real processes by `python -m benchmarks.overload`."""

import math
from collections import Counter

import pytest

from batch_manager.messages import RequestRefusal
from tests.batch_manager.overload.loads import (
    BULK,
    CAPACITY,
    DEADLINE,
    INTERACTIVE,
    SMALL,
    bulk,
    goodput,
    p99_between,
    queries,
    simulator,
)
from tests.batch_manager.simulator import Retry
from tests.tiers import full

pytestmark = pytest.mark.holds("Back-pressure")


@pytest.mark.holds("Deadlines")
@pytest.mark.parametrize("timeout", [DEADLINE, math.inf])
@pytest.mark.parametrize(("times", "seconds"), [(2, 6.0), (5, 4.0), (10, 3.0), *full((2, 60.0), (10, 20.0))])
def test_nearly_all_that_engines_do_is_answered_in_time(times: float, seconds: float, timeout: float) -> None:
    run = simulator()
    run.run([queries(times, timeout=timeout)], seconds)
    outcome = run.outcomes[INTERACTIVE]
    assert goodput(run) >= 0.95
    assert outcome.num_late == 0
    assert len(outcome.refusals) <= 0.01 * outcome.num_admitted
    assert run.num_unanswered == 0


@pytest.mark.parametrize("num_frontends", full(4))
def test_several_frontends_and_engines_are_as_good(num_frontends: int) -> None:
    run = simulator(num_engines=3, num_frontends=num_frontends)
    run.run([queries(6)], 10.0)
    assert goodput(run) >= 0.95 * 3
    assert run.outcomes[INTERACTIVE].num_late == 0


def test_a_small_budget_keeps_answers_quick() -> None:
    run = simulator(budgets=SMALL)
    run.run([queries(2)], 6.0)
    assert goodput(run) >= 0.95
    assert run.outcomes[INTERACTIVE].percentile(0.99) <= DEADLINE / 2


def test_deadlines_of_many_lengths_are_met() -> None:
    """Those with little time are refused; none of those let in has its work done for nothing."""
    run = simulator()
    run.run([queries(1, timeout=timeout) for timeout in (0.1, 0.3, 1.0, 3.0)], 5.0)
    outcome = run.outcomes[INTERACTIVE]
    assert goodput(run) >= 0.95
    assert outcome.num_late <= 0.01 * outcome.num_admitted
    assert set(outcome.refusals) <= {RequestRefusal.TOO_LATE}


@pytest.mark.holds("Two classes of work")
def test_queries_beside_too_much_bulk() -> None:
    run = simulator()
    run.run([queries(0.3), bulk(1.7)], 10.0)
    interactive = run.outcomes[INTERACTIVE]
    assert len(interactive.latencies) == interactive.num_offered
    assert interactive.percentile(0.99) <= 0.1
    assert run.outcomes[BULK].tokens >= 0.3 * (interactive.tokens + run.outcomes[BULK].tokens)
    assert goodput(run) >= 0.9


def test_after_a_spike_all_is_as_before_within_two_seconds() -> None:
    run = simulator(budgets=SMALL)
    run.run([queries(0.5), queries(4.5, first=5.0, last=15.0)], 22.0)
    before = p99_between(run, 0.0, 5.0)
    assert p99_between(run, 6.0, 15.0) >= 5 * before
    assert p99_between(run, 17.0, 22.0) <= 1.5 * before


def test_a_storm_of_retries_costs_nothing() -> None:
    run = simulator(budgets=SMALL)
    run.run([queries(2, retry=Retry.AT_ONCE)], 5.0)
    assert goodput(run) >= 0.9


@pytest.mark.parametrize("timeout", [DEADLINE, *full(math.inf)])
def test_those_who_come_back_when_they_are_told_find_room(timeout: float) -> None:
    """Ten seconds at five times the capacity, then half of it. They do not come back together either: in no second more
    than half of what the engines can do."""
    run = simulator(seed=3, speeds=(0.2,))  # a slower engine has as many seconds of work with fewer requests
    burst = queries(0.2 * 5, first=0.0, last=10.0, retry=Retry.AFTER, timeout=timeout)
    run.run([burst, queries(0.2 * 0.5, first=10.0, timeout=timeout)], 160.0)
    outcome = run.outcomes[INTERACTIVE]
    assert outcome.num_retries >= 0.2 * outcome.num_offered
    assert outcome.num_retries_admitted >= 0.9 * outcome.num_retries
    by_second: Counter[int] = Counter()
    for at, num_tokens in run.returned:
        by_second[int(at)] += num_tokens
    assert max(by_second.values()) <= 0.5 * 0.2 * CAPACITY


@pytest.mark.holds("Cancellation", "Work for a disconnected client is dropped")
def test_clients_that_leave_cost_next_to_nothing() -> None:
    """Every second client leaves at some moment of twenty seconds, twice as long as the others wait. That nothing of
    them is sent to an engine afterwards is asserted by the simulator itself."""
    run = simulator(speeds=(0.2,))
    run.run([queries(0.2 * 2, timeout=math.inf, leaves_within=20.0)], 60.0)
    outcome = run.outcomes[INTERACTIVE]
    assert outcome.num_left >= 0.15 * outcome.num_admitted
    assert run.wasted_tokens <= 0.02 * run.computed_tokens
    assert goodput(run) >= 0.2 * 0.95
    assert run.num_unanswered == 0
    assert not run.page.admitted_tokens.any()
