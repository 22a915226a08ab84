"""One API key asks for ten times its share, nine for theirs: nobody but the one notices."""

from collections.abc import Sequence

import pytest

from server.requests.admission import WaitBudgets
from server.settings.api_keys import ApiKey
from tests.batch_manager.overload.loads import CAPACITY, LARGE, goodput, queries, simulator
from tests.tiers import full

pytestmark = pytest.mark.holds("Fair shares", "API keys share a class by weight")
NUM_KEYS = 10
SECONDS = 10.0


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 where all are equal, one over their number where one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def a_key(number: int, *, weight: float = 1.0, tokens_per_minute: int | None = None) -> ApiKey:
    return ApiKey(f"key-{number}", bytes([number]), weight, tokens_per_minute)


@pytest.mark.parametrize("budgets", [LARGE, *full((WaitBudgets(1.0, 10.0),))])
@pytest.mark.parametrize("num_frontends", [1, *full(3)])
def test_a_greedy_key_takes_nothing_from_others(budgets: WaitBudgets, num_frontends: int) -> None:
    keys = [a_key(number) for number in range(NUM_KEYS)]
    run = simulator(budgets=budgets, keys=keys, num_frontends=num_frontends)
    greedy, *fair = (key.name for key in keys)
    share = 1 / NUM_KEYS
    run.run([queries(10 * share, key=greedy), *(queries(share, key=name) for name in fair)], SECONDS)
    got = {key.name: run.by_key[key.name].tokens / (CAPACITY * SECONDS) for key in keys}
    asked = {name: run.by_key[name].offered_tokens / (CAPACITY * SECONDS) for name in fair}
    assert min(got[name] / min(share, asked[name]) for name in fair) >= 0.9
    assert jain(list(got.values())) >= 0.95
    assert goodput(run) >= 0.95
    assert sum(run.by_key[greedy].reasons.values()) >= 0.5 * run.by_key[greedy].num_offered
    assert all(sum(run.by_key[name].reasons.values()) <= 0.05 * run.by_key[name].num_offered for name in fair)


def test_weights_say_who_gets_how_much() -> None:
    keys = [a_key(0, weight=1.0), a_key(1, weight=2.0), a_key(2, weight=5.0)]
    run = simulator(keys=keys)
    run.run([queries(0.9, key=key.name) for key in keys], SECONDS)
    got = [run.by_key[key.name].tokens / (CAPACITY * SECONDS) for key in keys]
    assert got == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=0.1)


def test_a_single_key_may_have_everything() -> None:
    keys = [a_key(0), a_key(1)]
    run = simulator(keys=keys)
    run.run([queries(2, key="key-0")], SECONDS)
    assert goodput(run) >= 0.95


def test_several_frontends_hold_a_ceiling() -> None:
    ceiling = int(CAPACITY * 60 / 20)
    run = simulator(keys=[a_key(0, tokens_per_minute=ceiling), a_key(1)], num_frontends=3)
    run.run([queries(0.2, key="key-0"), queries(0.02, key="key-1")], 150.0)
    assert 0.8 * ceiling * 150 / 60 <= run.by_key["key-0"].tokens <= ceiling * (1 + 150 / 60)
    assert run.by_key["key-0"].reasons.keys() == {"key_limit"}
    assert not run.by_key["key-1"].reasons
