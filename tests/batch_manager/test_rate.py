"""The rate estimate."""

from dataclasses import replace

import pytest

from batch_manager.scheduling.engines import Rate
from tests.batch_manager.harness import Harness, limits, with_engine


def test_nothing_is_known_before_the_first_batch() -> None:
    assert Rate().tokens_per_second == 0


def test_a_small_batch_counts_only_where_it_is_faster_than_what_is_known() -> None:
    rate = Rate()
    rate.observe(10, 0.1, max_tokens=1000)
    assert rate.tokens_per_second == 100
    rate.observe(10, 1.0, max_tokens=1000)
    assert rate.tokens_per_second == 100
    rate.observe(20, 0.1, max_tokens=1000)
    assert rate.tokens_per_second == pytest.approx(120)


def test_it_follows_the_engine() -> None:
    rate = Rate()
    rate.seed(1000.0)
    rate.seed(5.0)
    assert rate.tokens_per_second == 1000
    for _ in range(10):
        rate.observe(500, 1.0, max_tokens=1000)
    assert rate.tokens_per_second == pytest.approx(500, rel=0.11)


def test_a_small_share_is_no_sign_of_slowness() -> None:
    """Work that was split so that no stream idles says as little of an engine's speed as any small batch."""
    harness = Harness()
    many = limits(streams=2, depth=3, tokens_per_second=10_000.0, max_num_tokens=16_384, max_num_seqs=16_384)
    harness.ready(engine_limits=many)
    harness.submit(*[10] * 100)
    assert [batch.num_tokens for batch in harness.dispatched] == [500, 500]
    harness.done(seconds=0.5)
    assert harness.scheduler.models[0].rate.tokens_per_second == 10_000


def test_a_batch_that_took_no_time_says_nothing() -> None:
    rate = Rate()
    rate.observe(10, 0.0, max_tokens=10)
    assert rate.tokens_per_second == 0


def test_an_estimate_from_a_small_batch_grows_to_the_truth() -> None:
    """Batches grow with the estimate and the estimate with the batches: a = 5 ms, r = 100,000 tokens/s."""
    harness = with_engine(depth=1, max_num_tokens=16_384, max_num_seqs=16_384)
    harness.submit(10)
    harness.done(seconds=0.0051)
    harness.submit(*[100] * 10_000)
    for _ in range(40):
        harness.done(seconds=0.005 + harness.engines[0].batches[0].num_tokens / 100_000)
    assert harness.scheduler.models[0].rate.tokens_per_second == pytest.approx(97_000, rel=0.05)


def test_batches_grow_where_each_costs_more_than_it_should_take() -> None:
    """As of an engine on a GPU that starts its kernels one by one: 33 ms a batch, 200,000 tokens/s beyond them."""
    harness = Harness()
    slow = limits(max_num_tokens=16_384, max_num_seqs=16_384, max_seqlen=512, tokens_per_second=15_000.0)
    harness.ready(engine_limits=replace(slow, max_batch_seconds=0.025, fixed_batch_seconds=0.033, depth=1))
    harness.submit(*[190] * 1000)
    sizes = []
    for _ in range(12):
        sizes.append(harness.dispatched[-1].num_tokens)
        harness.done(seconds=0.033 + sizes[-1] / 200_000)
    assert 5000 < sizes[-1] < 7000  # as long again as the cost of each
    assert max(sizes) < 7000
