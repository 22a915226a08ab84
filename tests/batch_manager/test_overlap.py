"""Engines that begin a staged batch while the one ahead is still computed: what is staged beside a long sequence."""

import pytest

from batch_manager.messages import Policy, RequestRefusal
from batch_manager.scheduling.engines import Rate
from engine.types import EngineLimits
from tests.batch_manager.harness import BULK, Harness, limits, with_engine


def spreading(*, overlaps: bool = True, tokens_per_second: float = 20_000.0) -> EngineLimits:
    """An engine that spreads a batch over its cores; batches of at most 0.05 s, beside queries, have 1,000 tokens."""
    return limits(
        max_num_tokens=16_384,
        max_num_seqs=2048,
        max_seqlen=8192,
        target_num_tokens=4096,
        tokens_per_second=tokens_per_second,
        overlaps=overlaps,
    )


def started(*, overlaps: bool = True, tokens_per_second: float = 20_000.0) -> Harness:
    harness = with_engine(Policy(), engine_limits=spreading(overlaps=overlaps, tokens_per_second=tokens_per_second))
    return harness


@pytest.mark.holds("A long text does not block the other cores")
@pytest.mark.parametrize("tokens_per_second", [0.0, 20_000.0])
def test_queries_are_computed_beside_a_long_text(tokens_per_second: float) -> None:
    harness = started(tokens_per_second=tokens_per_second)
    harness.submit(8192)
    for _ in range(5):
        harness.advance(1.0)
        query = harness.submit(12)
        harness.done(which=1)
        assert harness.finished[-1] == query
    assert len(harness.open) == 1


def test_what_comes_while_a_query_is_beside_a_long_text_goes_together() -> None:
    harness = started()
    harness.submit(8192)
    harness.submit(12)
    waiting = [harness.submit(12) for _ in range(3)]
    assert len(harness.dispatched) == 2
    harness.done(which=1)
    assert harness.batch() == [(request, 0) for request in waiting]


def test_bulk_that_leaves_a_core_idle_keeps_nobody_waiting() -> None:
    harness = started()
    harness.submit(3000, 20, request_class=BULK)
    query = harness.submit(12)
    assert harness.batch() == [(query, 0)]


def test_a_batch_ahead_without_a_part_of_its_own_is_waited_for() -> None:
    harness = started(overlaps=False)
    harness.submit(8192)
    harness.submit(12)
    assert len(harness.dispatched) == 1


@pytest.mark.parametrize("seqlens", [(30,), (64,) * 64, (1000,) * 4])
def test_behind_a_batch_that_keeps_all_cores_busy_nothing_small_is_sealed(seqlens: tuple[int, ...]) -> None:
    harness = started()
    harness.submit(*seqlens)
    harness.submit(12)
    assert len(harness.dispatched) == 1


@pytest.mark.holds("A long text does not block the other cores")
def test_many_single_requests_in_flight_are_batched_as_anywhere() -> None:
    """Each client sends its next query when it has its answer, one after the other."""
    sizes = []
    for overlaps in (False, True):
        harness = started(overlaps=overlaps, tokens_per_second=2000.0)
        for _ in range(64):
            harness.submit(30)
        for _ in range(40):
            num_answered = harness.engines[0].batches[0].num_seqs
            harness.done(seconds=num_answered * 30 / 2000)
            for _ in range(num_answered):
                harness.submit(30)
        sizes.append([batch.num_seqs for batch in harness.dispatched])
    assert sizes[0] == sizes[1]


def test_all_that_an_overlapping_engine_held_is_suspect_when_it_dies() -> None:
    harness = started()
    long = harness.submit(8192)
    killer = harness.submit(12)
    harness.lose()
    harness.ready(engine_limits=spreading())
    assert harness.batch() == [(long, 0)]
    harness.done()
    assert harness.batch() == [(killer, 0)]
    harness.lose()
    assert harness.finished == [long]
    assert harness.refusal(killer) == (RequestRefusal.POISON, 0)


def test_a_batch_beside_a_long_one_teaches_no_speed_that_nobody_has() -> None:
    """It was nearly done when the long one ended, which is when its time began to be counted."""
    harness = started()
    harness.submit(8192)
    harness.submit(*[50] * 60)
    harness.done(seconds=8192 / 20_000)
    harness.done(seconds=1e-6)
    assert harness.scheduler.models[0].rate.tokens_per_second == pytest.approx(20_000)


def test_a_batch_beside_a_long_one_may_show_that_the_engine_is_slower() -> None:
    rate = Rate()
    rate.seed(1000.0)
    rate.observe(1000, 2.0, max_tokens=1000, is_beside=True)
    assert rate.tokens_per_second == pytest.approx(900)


def test_behind_other_batches_an_overlapping_engine_teaches_as_any() -> None:
    harness = started()
    harness.submit(*[50] * 60)
    harness.submit(*[50] * 60)
    harness.done(seconds=0.1)
    harness.done(seconds=0.1)
    assert harness.scheduler.models[0].rate.tokens_per_second == pytest.approx(20_000 + 3600)
