"""Engines that fail, and what tests of them ask."""

from engine.types import EngineErrorKind
from tests.batch_manager.harness import Harness, limits

FAILED, NON_FINITE, OUT_OF_MEMORY = (
    EngineErrorKind.FAILED,
    EngineErrorKind.NON_FINITE,
    EngineErrorKind.OUT_OF_MEMORY,
)


def with_engines(count: int, **its_limits: object) -> Harness:
    harness = Harness()
    for engine_id in range(count):
        harness.ready(engine_id, engine_limits=limits(**its_limits))
    return harness


def fail_in_a_row(harness: Harness, engine_id: int, count: int) -> list[int]:
    """Single requests that fail on this engine and are computed by another one; their ids."""
    requests = []
    for _ in range(count):
        requests.append(harness.submit(10))
        assert harness.batch(engine_id) == [(requests[-1], 0)]
        harness.fail(engine_id)
        harness.done(1 - engine_id)
    return requests


def canary_is_in(harness: Harness, engine_id: int = 0) -> bool:
    return any(batch.is_canary for batch in harness.engines[engine_id].batches)
