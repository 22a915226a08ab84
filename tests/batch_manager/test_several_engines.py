"""Several engines of one model, such as GPUs of different speed: the one with the least to do is fed first."""

import random

import pytest

from batch_manager.scheduling.scheduler import Dispatch
from engine.types import EngineLimits
from tests.batch_manager.harness import Harness, limits
from tests.batch_manager.simulator import TOKENS_PER_SECOND, Simulator
from tests.batch_manager.test_simulation import LIMITS, POLICY, bulk, queries

pytestmark = pytest.mark.holds("Engines on a GPU")


class Watching(Harness):
    """Looks, before each batch, at who has how much."""

    def _check_dispatch(self, dispatch: Dispatch) -> None:
        able = [number for number, engine in self.engines.items() if len(engine.batches) < engine.limits.depth]
        assert self._load(dispatch.engine_id) == min(map(self._load, able))
        super()._check_dispatch(dispatch)

    def _load(self, engine_id: int) -> tuple[bool, float]:
        """Whether all its streams are busy, and the seconds of what it holds."""
        engine = self.engines[engine_id]
        rate = engine.limits.tokens_per_second * engine.limits.streams
        return len(engine.batches) >= engine.limits.streams, sum(held.num_tokens for held in engine.batches) / rate


def at(tokens_per_second: float, **others: object) -> EngineLimits:
    return limits(tokens_per_second=tokens_per_second, **others)


@pytest.mark.holds("The engine that finishes soonest gets the next batch")
@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_goes_to_the_least_loaded(seed: int) -> None:
    numbers = random.Random(seed)
    harness = Watching()
    for number, rate in enumerate((1000.0, 4000.0, 2500.0)):
        harness.ready(number, engine_limits=at(rate, streams=1 + number % 2, depth=3))
    for _ in range(400):
        harness.submit(*(numbers.randint(1, 60) for _ in range(numbers.randint(1, 4))))
        for number, engine in harness.engines.items():
            while engine.batches and numbers.random() < 0.4:
                harness.done(number)
    assert len(harness.dispatched) > 100


def test_a_slow_engine_beside_a_fast_one_keeps_both_busy() -> None:
    simulator = Simulator(POLICY, LIMITS, seed=8, speeds=(1.0, 0.25))
    simulator.run([queries(0.1), bulk(1.5)], 10.0)
    tokens = sum(outcome.tokens for outcome in simulator.outcomes.values())
    assert tokens >= 0.8 * 1.25 * TOKENS_PER_SECOND * 10.0  # a batch beside queries loses a tenth to its fixed cost
    assert min(simulator.busy_seconds) >= 9.5
    assert simulator.num_unanswered == 0
