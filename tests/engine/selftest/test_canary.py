"""The canary knows the rows that the engine gave at its start, and sees when they change."""

import numpy as np
import pytest

from engine import fake
from engine.selftest.warmup import Canary
from engine.types import EngineError, EngineErrorKind, ModelError, OutputKind, Results, Rows
from tests.engine.engines import fake_options


def computed(engine: fake.FakeEngine, canary: Canary) -> Results:
    engine.submit(canary.batch)
    _, results = engine.collect()
    assert isinstance(results, dict)
    return results


def load(**options: object) -> fake.FakeEngine:
    return fake.load(name="m", reason="asked", options=fake_options(**options))


@pytest.mark.parametrize("outputs", [OutputKind.POOLED, OutputKind.LOGITS, OutputKind.TOKENS, OutputKind.SPARSE])
def test_the_same_rows_pass(outputs: OutputKind) -> None:
    engine = load(outputs=outputs)
    canary = Canary(engine)
    assert canary.batch.outputs == outputs
    assert canary.judge(computed(engine, canary)) is None


def test_rounding_passes_and_other_rows_do_not() -> None:
    engine = load()
    canary = Canary(engine)
    rows = computed(engine, canary)[OutputKind.POOLED].values
    largest = np.abs(rows).max()
    for change, passes in ((1e-4 * largest, True), (1e-2 * largest, False), (np.nan, False)):
        changed = rows.copy()
        changed[1, 2] += change
        found = canary.judge({OutputKind.POOLED: Rows(changed)})
        assert (found is None) == passes
    assert canary.judge({OutputKind.POOLED: Rows(rows[:-1])}) is not None
    assert canary.judge({OutputKind.POOLED: Rows(rows[::-1])}) is not None


def test_a_sparse_row_may_lose_a_weight_that_rounds_to_zero() -> None:
    engine = load(outputs=OutputKind.SPARSE)
    canary = Canary(engine)
    rows = computed(engine, canary)[OutputKind.SPARSE]
    assert rows.offsets is not None
    assert canary.judge({OutputKind.SPARSE: Rows(rows.values[:-1], rows.offsets)}) is None


def test_an_error_is_passed_on_with_its_kind() -> None:
    canary = Canary(load())
    found = canary.judge(EngineError(EngineErrorKind.FATAL, "the device is lost"))
    assert found is not None
    assert found.kind is EngineErrorKind.FATAL


def test_an_engine_that_fails_its_first_canary_can_not_be_served() -> None:
    with pytest.raises(ModelError, match="the canary failed"):
        Canary(load(fake_fault=["fail@batch:1"]))
