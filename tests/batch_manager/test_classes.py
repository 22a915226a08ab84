"""Interactive work goes first, bulk keeps its share, batches shrink while both are about."""

import pytest

from batch_manager.messages import Policy
from engine.types import OutputKind
from tests.batch_manager.harness import BULK, INTERACTIVE, Harness, limits

FIXED = Policy(max_batch_tokens=1000)  # no caps in seconds: the rate is never known


def shares(harness: Harness) -> list[int]:
    """Tokens of bulk work in each batch so far."""
    return [
        sum(piece.num_tokens for piece in batch.slices if piece.request.request_class == BULK)
        for batch in harness.dispatched
    ]


def both_wait(
    policy: Policy = FIXED, *, bulk_outputs: OutputKind = OutputKind.POOLED, bulk_seqlen: int = 10
) -> Harness:
    """Much of both classes waits for an engine that takes 1000 tokens."""
    harness = Harness(policy)
    harness.offer(*[bulk_seqlen] * (20_000 // bulk_seqlen), request_class=BULK, outputs=bulk_outputs)
    harness.offer(*[10] * 2000)
    harness.ready(engine_limits=limits(max_num_tokens=2000, max_seqlen=2000, max_num_seqs=10_000))
    return harness


@pytest.mark.holds("Two classes of work")
def test_both_classes_share_each_batch() -> None:
    harness = both_wait()
    for _ in range(10):
        harness.done()
    assert set(shares(harness)) == {300}
    assert {batch.num_tokens for batch in harness.dispatched} == {1000}


def test_work_of_other_output_kinds_takes_turns() -> None:
    harness = both_wait(bulk_outputs=OutputKind.TOKENS)
    for _ in range(18):
        harness.done()
    assert sum(shares(harness)) == pytest.approx(0.3 * 1000 * 20, abs=1000)
    assert set(shares(harness)) == {0, 1000}


def test_sequences_larger_than_the_share_still_get_it() -> None:
    harness = both_wait(bulk_seqlen=800)
    for _ in range(18):
        harness.done()
    assert sum(shares(harness)) == pytest.approx(0.3 * 1000 * 20, abs=1000)


def test_sequences_larger_than_a_batch_are_paid_back() -> None:
    harness = both_wait(bulk_seqlen=2000)
    for _ in range(23):
        harness.done()
    bulk, total = sum(shares(harness)), sum(batch.num_tokens for batch in harness.dispatched)
    assert bulk / total == pytest.approx(0.3, abs=0.07)


def test_a_long_interactive_sequence_is_not_kept_out_by_the_share() -> None:
    harness = Harness(FIXED)
    harness.offer(*[10] * 2000, request_class=BULK)
    query = harness.offer(900)
    harness.ready(engine_limits=limits(max_num_tokens=1000, max_seqlen=1000, max_num_seqs=1000))
    harness.done()
    assert harness.finished == [query]


def test_room_that_one_class_leaves_is_lent_and_not_asked_back() -> None:
    harness = Harness(FIXED)
    harness.offer(*[10] * 2000, request_class=BULK)
    query = harness.offer(10)
    harness.ready(engine_limits=limits(max_num_tokens=1000, max_seqlen=1000, max_num_seqs=1000))
    assert shares(harness) == [990, 1000]
    harness.offer(*[10] * 2000)
    harness.done()
    assert harness.finished == [query]
    assert shares(harness)[2:] == [300]


@pytest.mark.holds("Two classes of work")
def test_interactive_work_passes_bulk_that_came_earlier() -> None:
    harness = Harness()
    harness.ready(engine_limits=limits(depth=1))
    harness.submit(*[50] * 100, request_class=BULK)
    harness.advance(1)
    query = harness.submit(10)
    assert query not in harness.finished
    harness.done()
    harness.done()
    assert harness.finished == [query]


def test_other_output_kinds_of_bulk_are_not_passed_over() -> None:
    """Bulk work of the kind that interactive work has fills its batches; the older kind still gets its turn."""
    harness = Harness(FIXED)
    older = harness.offer(*[10] * 5, request_class=BULK, outputs=OutputKind.TOKENS)
    harness.advance(1)
    harness.offer(*[10] * 2000, request_class=BULK)
    harness.offer(*[10] * 2000)
    harness.ready(engine_limits=limits(max_num_tokens=1000, max_seqlen=1000, max_num_seqs=1000))
    for _ in range(5):
        harness.done()
    assert older in harness.finished


@pytest.mark.holds("Two classes of work")
@pytest.mark.parametrize(("interactive", "expected"), [(False, 2500), (True, 500)])
def test_batches_are_short_while_both_are_about(interactive: bool, expected: int) -> None:
    harness = Harness(Policy(interactive_memory=0.0))
    harness.ready(engine_limits=limits(tokens_per_second=10_000.0, max_num_tokens=16_384, max_num_seqs=16_384))
    if interactive:
        harness.offer(*[10] * 1000)
    harness.submit(*[10] * 1000, request_class=BULK)
    assert [batch.num_tokens for batch in harness.dispatched] == [expected, expected]


def test_interactive_work_alone_has_long_batches() -> None:
    harness = Harness()
    harness.ready(engine_limits=limits(tokens_per_second=10_000.0, max_num_tokens=16_384, max_num_seqs=16_384))
    harness.submit(*[10] * 1000)
    assert harness.dispatched[0].num_tokens == 2500


def test_batches_stay_short_for_a_while_after_interactive_work() -> None:
    harness = Harness(Policy(interactive_memory=1.0))
    harness.ready(engine_limits=limits(tokens_per_second=10_000.0, max_num_tokens=16_384, max_num_seqs=16_384))
    harness.submit(10)
    harness.done()
    harness.submit(*[10] * 2000, request_class=BULK)
    assert harness.dispatched[-1].num_tokens == 500
    harness.advance(1.0)
    harness.done(seconds=0.05)
    assert harness.dispatched[-1].num_tokens == 2500


def test_a_slow_engine_is_not_driven_down_to_one_sequence_a_batch() -> None:
    harness = Harness()
    harness.ready(engine_limits=limits(tokens_per_second=10.0, max_num_tokens=16_384, max_num_seqs=16_384))
    harness.submit(*[1] * 1000)
    assert harness.dispatched[0].num_tokens == 256


def test_an_engine_says_how_long_its_batches_may_take() -> None:
    harness = Harness()
    quick = limits(tokens_per_second=100_000.0, max_num_tokens=16_384, max_num_seqs=16_384, max_batch_seconds=0.025)
    harness.ready(engine_limits=quick)
    harness.submit(*[10] * 1000)
    assert harness.dispatched[0].num_tokens == 2500


def test_a_model_of_8b_on_a_gpu_gets_batches_of_2048_tokens() -> None:
    """They take 27 ms in FP8 on an H100; the fused engine allows 30."""
    harness = Harness()
    large = limits(
        tokens_per_second=2048 / 0.027,
        max_num_tokens=16_384,
        max_num_seqs=1024,
        token_buckets=(512, 768, 1024, 1536, 2048, 3072, 4096, 16_384),
        max_batch_seconds=0.030,
    )
    harness.ready(engine_limits=large)
    harness.submit(*[64] * 400, request_class=BULK)
    assert harness.dispatched[-1].num_tokens == 2048


def test_an_engine_of_small_fixed_costs_keeps_to_its_time_with_small_batches() -> None:
    harness = Harness()
    slow = limits(tokens_per_second=400.0, max_num_tokens=16_384, max_num_seqs=16_384, target_num_tokens=512)
    harness.ready(engine_limits=slow)
    harness.submit(*[10] * 1000)
    assert harness.dispatched[0].num_tokens == 100


@pytest.mark.holds("Neither class starves", "Two classes of work")
def test_bulk_waits_for_a_bounded_number_of_batches_however_small_they_are() -> None:
    harness = Harness(FIXED)
    harness.ready(engine_limits=limits(depth=1))
    harness.submit(100)
    bulk = harness.submit(90, request_class=BULK, outputs=OutputKind.TOKENS)
    for _ in range(4):
        harness.submit(1, request_class=INTERACTIVE)
        harness.done()
    assert bulk in [request_id for request_id, _ in harness.batch()]
