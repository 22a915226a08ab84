"""What a warm-up measures of engines whose costs are known, and what the canary of its rows sees later."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import fake
from engine.selftest.warmup import Canary, warm_up
from engine.types import (
    Batch,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    OutputKind,
    Results,
    Rows,
)
from tests.engine.engines import fake_options, model_info


class Scripted:
    """Streams that compute side by side, each batch for as long as `cost` says of its tokens."""

    def __init__(self, cost: Callable[[int], float], **limits: float | tuple[int, ...]) -> None:
        self.info = model_info()
        self.limits = EngineLimits(**{"max_num_tokens": 16_384, "max_num_seqs": 1024, "max_seqlen": 512} | limits)  # type: ignore[arg-type]
        self.now = 0.0
        self.sizes: list[int] = []
        self.answer: Callable[[Batch], Results | EngineError] = lambda batch: {
            OutputKind.POOLED: Rows(np.zeros((batch.num_seqs, 2), np.float32))
        }
        self._cost = cost
        self._inside: list[Batch] = []

    def submit(self, batch: Batch) -> int:
        assert len(self._inside) < self.limits.depth
        assert batch.num_tokens <= self.limits.max_num_tokens
        assert batch.num_seqs <= self.limits.max_num_seqs
        self._inside.append(batch)
        self.sizes.append(batch.num_tokens)
        return len(self.sizes)

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        return None

    def collect(self) -> tuple[int, Results | EngineError]:
        batch = self._inside.pop()
        if not self._inside:
            self.now += self._cost(batch.num_tokens)
        return len(self._inside), self.answer(batch)

    def close(self) -> None: ...


def warmed(engine: Scripted) -> EngineLimits:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.selftest.warmup.time.perf_counter", lambda: engine.now)
        return warm_up(engine)


def linear(fixed_seconds: float, tokens_per_second: float) -> Callable[[int], float]:
    return lambda num_tokens: fixed_seconds + num_tokens / tokens_per_second


@pytest.mark.parametrize(
    ("cost", "limits", "target", "tokens_per_second"),
    [
        # 2,048 tokens have 0.944 of 40,000 tokens/s, 4,096 have 0.972, 1,024 have 0.895
        (linear(0.003, 40_000), {}, 2048, 2048 / 0.0542),
        (lambda num_tokens: num_tokens / 20_000 * (1 if num_tokens <= 512 else 1.2), {}, 512, 20_000),
        (lambda num_tokens: 0.006 * math.ceil(num_tokens / 1024), {"max_batch_seconds": 0.025}, 1024, 1024 / 0.006),
        (linear(0, 10_000), {"target_num_tokens": 300}, 300, 10_000),
    ],
    ids=["gain little", "only slower, as on a CPU whose caches are full", "in steps, as on a GPU", "a known target"],
)
def test_the_target_is_where_larger_batches_gain_little(
    cost: Callable[[int], float], limits: dict[str, float], target: int, tokens_per_second: float
) -> None:
    engine = Scripted(cost, **limits)
    found = warmed(engine)
    assert found.target_num_tokens == target
    assert found.tokens_per_second == pytest.approx(tokens_per_second)
    assert engine.now <= 1
    assert "target_num_tokens" not in limits or len(engine.sizes) == 3


@pytest.mark.parametrize(
    ("cost", "limits", "group"),
    [
        (linear(0, 200), {}, 2048),  # too slow for a second size to be measured
        (linear(0.003, 40_000), {}, 2048),
        (linear(0.03, 40_000), {}, 4096),
        (lambda num_tokens: num_tokens / 20_000 * (1 if num_tokens <= 1024 else 1.5), {}, 1024),
        (linear(0, 10_000), {"max_num_tokens": 1000}, 1000),
        (linear(0, 10_000), {"max_num_tokens": 64, "max_seqlen": 64}, 64),  # no room for the prefix
        (linear(0.03, 40_000), {"token_buckets": (512, 4096)}, 0),  # time alone bounds its batches
    ],
    ids=["slow", "usual", "each batch has a cost", "full caches", "a small limit", "a tiny one", "graphs"],
)
def test_a_group_is_as_large_as_its_prefix_is_worth(
    cost: Callable[[int], float], limits: dict[str, Any], group: int
) -> None:
    engine = Scripted(cost, **limits)
    assert warmed(engine).group_tokens == 0
    engine.info = dataclasses.replace(engine.info, shares_prefixes=True)
    assert warmed(engine).group_tokens == group


def test_where_more_may_be_gained_no_target_is_set() -> None:
    """The time that a batch may take then bounds it, or the engine's own limit."""
    engine = Scripted(linear(0.02, 100_000))
    limits = warmed(engine)
    assert limits.target_num_tokens == 0
    assert limits.tokens_per_second == pytest.approx(max(size / engine._cost(size) for size in engine.sizes))


def test_what_every_batch_costs_is_found_where_it_is_longer_than_a_batch_should_be() -> None:
    """As of an engine on a GPU that starts its kernels one by one."""
    limits = warmed(Scripted(linear(0.033, 200_000), max_batch_seconds=0.025))
    assert limits.target_num_tokens == 0
    assert limits.fixed_batch_seconds == pytest.approx(0.033)


def test_an_engine_without_a_cost_for_each_batch_has_none() -> None:
    assert warmed(Scripted(linear(0, 100_000))).fixed_batch_seconds == pytest.approx(0, abs=1e-9)


def test_no_batch_is_longer_than_the_engine_would_ever_have() -> None:
    engine = Scripted(linear(0, 100_000), max_batch_seconds=0.025)
    warmed(engine)
    assert max(engine.sizes) == 2048


@pytest.mark.parametrize("limit", [{"max_num_tokens": 1024}, {"max_num_seqs": 16}])
def test_sizes_keep_to_the_limits(limit: dict[str, float]) -> None:
    engine = Scripted(linear(0, 1e6), **limit)
    assert warmed(engine).target_num_tokens == 512
    assert max(engine.sizes) == 1024


@pytest.mark.parametrize("tokens_per_second", [60.0, 300.0, 1000.0])
def test_a_slow_engine_is_not_measured_for_long(tokens_per_second: float) -> None:
    engine = Scripted(linear(0.1, tokens_per_second))
    limits = warmed(engine)
    assert limits.target_num_tokens == 0
    assert limits.tokens_per_second == pytest.approx(128 / (0.1 + 128 / tokens_per_second))
    assert max(engine.sizes) == 128


@pytest.mark.holds("Back-pressure")
def test_all_streams_are_measured_together() -> None:
    engine = Scripted(linear(0, 10_000), streams=3, depth=4)
    assert warmed(engine).tokens_per_second == pytest.approx(10_000)
    assert engine.sizes[:6] == [27] * 6


def test_what_a_new_shape_costs_once_is_not_taken_for_slowness() -> None:
    seen: set[int] = set()

    def cost(num_tokens: int) -> float:
        is_new = num_tokens not in seen
        seen.add(num_tokens)
        return num_tokens / 10_000 + (1.0 if is_new else 0.0)

    engine = Scripted(cost, target_num_tokens=300)
    assert warmed(engine).tokens_per_second == pytest.approx(10_000)


class Staging(Scripted):
    """One stream, whose batches come one behind the other. What the host does with a batch is seen where none is ahead
    of it."""

    def __init__(
        self,
        cost: Callable[[int], float],
        *,
        host_seconds: float = 0.0,
        max_batch_seconds: float = 0.025,
        **limits: float,
    ) -> None:
        super().__init__(cost, token_buckets=(128, 16_384), max_batch_seconds=max_batch_seconds, **limits)
        self._host_seconds = host_seconds

    def submit(self, batch: Batch) -> int:
        self.now += 0.0 if self._inside else self._host_seconds
        return super().submit(batch)

    def collect(self) -> tuple[int, Results | EngineError]:
        batch = self._inside.pop(0)
        self.now += self._cost(batch.num_tokens)
        return len(self._inside), self.answer(batch)


@pytest.mark.parametrize(("known", "target", "measured"), [(0, 0, 16_384), (300, 300, 256)])
def test_where_there_are_buckets_what_a_new_size_costs_is_left_out(known: int, target: int, measured: int) -> None:
    """However long it takes: kernels may have to be compiled."""
    seen: set[int] = set()

    def cost(num_tokens: int) -> float:
        is_new = num_tokens not in seen
        seen.add(num_tokens)
        return 0.0002 + num_tokens / 1e6 + (5.0 if is_new else 0.0)

    limits = warmed(Staging(cost, target_num_tokens=known))
    assert limits.target_num_tokens == target
    assert limits.tokens_per_second == pytest.approx(measured / (0.0002 + measured / 1e6))


def test_a_model_of_8b_on_a_gpu_is_not_left_at_1024_tokens() -> None:
    """Its costs in FP8 on an H100: 1,024 tokens have 0.96 of the rate of 2,048, which come close to 30 ms."""
    limits = warmed(Staging(linear(0.00099, 78_770), max_batch_seconds=0.030))
    assert limits.target_num_tokens == 0
    assert limits.tokens_per_second == pytest.approx(2048 / 0.02699, rel=1e-3)


def test_where_there_are_buckets_batches_are_measured_one_behind_the_other() -> None:
    """The host's 10 ms are paid once for four batches."""
    engine = Staging(linear(0.0, 1e6), host_seconds=0.01)
    limits = warmed(engine)
    measured = max(engine.sizes)
    assert limits.tokens_per_second == pytest.approx(measured / (measured / 1e6 + 0.01 / 4))
    assert not engine._inside


@pytest.mark.holds("Readiness")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (EngineError(EngineErrorKind.FAILED, "as told"), "as told"),
        ({OutputKind.POOLED: Rows(np.zeros((9, 2), np.float32))}, "shape"),
        ({OutputKind.POOLED: Rows(np.full((4, 2), np.nan, np.float32))}, "not finite"),
    ],
)
def test_an_engine_that_is_not_right_is_refused(answer: Results | EngineError, why: str) -> None:
    engine = Scripted(linear(0.001, 10_000))
    engine.answer = lambda _: answer
    with pytest.raises(ModelError, match=why):
        warmed(engine)


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
    more = np.append(rows.values, np.array([[rows.values[:, 0].max() + 1, 1e-5]], np.float32), axis=0)
    offsets = rows.offsets.copy()
    offsets[-1] += 1
    assert canary.judge({OutputKind.SPARSE: Rows(more, offsets)}) is None
    more[-1, 1] = rows.values[:, 1].max()
    assert canary.judge({OutputKind.SPARSE: Rows(more, offsets)}) is not None


@pytest.mark.parametrize("factor", [0, 1.05, np.nan])
def test_weights_of_sparse_rows_are_compared_whatever_their_ids(factor: float) -> None:
    engine = load(outputs=OutputKind.SPARSE)
    canary = Canary(engine)
    rows = computed(engine, canary)[OutputKind.SPARSE]
    changed = rows.values * np.array([1, factor], np.float32)
    assert canary.judge({OutputKind.SPARSE: Rows(changed, rows.offsets)}) is not None


@pytest.mark.parametrize(("tokens_per_second", "num_tokens"), [(0, 27), (540, 27), (539, 5)])
def test_a_slow_engine_gets_a_short_one(tokens_per_second: float, num_tokens: int) -> None:
    """A query that comes behind it waits for it."""
    engine = load()
    canary = Canary(engine, tokens_per_second=tokens_per_second)
    assert canary.batch.num_tokens == num_tokens
    assert canary.judge(computed(engine, canary)) is None


def test_an_error_is_passed_on_with_its_kind() -> None:
    canary = Canary(load())
    found = canary.judge(EngineError(EngineErrorKind.FATAL, "the device is lost"))
    assert found is not None
    assert found.kind is EngineErrorKind.FATAL


def test_an_engine_that_fails_its_first_canary_can_not_be_served() -> None:
    with pytest.raises(ModelError, match="the canary failed"):
        Canary(load(fake_fault=["fail@batch:1"]))
