"""Interactive work goes first, bulk keeps its share, batches shrink while both are about."""

import pytest

from batch_manager.messages import Policy
from engine.types import OutputKind
from tests.batch_manager.harness import BULK, INTERACTIVE, Harness, limits, with_engine

FIXED = Policy(max_batch_tokens=1000)  # no caps in seconds: the rate is never known


def shares(harness: Harness) -> list[int]:
    """Tokens of bulk work in each batch so far."""
    return [
        sum(slice_.num_tokens for slice_ in batch.slices if slice_.request.request_class == BULK)
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
    harness = with_engine(depth=1)
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
    harness = with_engine(
        Policy(interactive_memory=0.0), tokens_per_second=10_000.0, max_num_tokens=16_384, max_num_seqs=16_384
    )
    if interactive:
        harness.offer(*[10] * 1000)
    harness.submit(*[10] * 1000, request_class=BULK)
    assert [batch.num_tokens for batch in harness.dispatched] == [expected, expected]


def test_batches_stay_short_for_a_while_after_interactive_work() -> None:
    harness = with_engine(
        Policy(interactive_memory=1.0), tokens_per_second=10_000.0, max_num_tokens=16_384, max_num_seqs=16_384
    )
    harness.submit(10)
    harness.done()
    harness.submit(*[10] * 2000, request_class=BULK)
    assert harness.dispatched[-1].num_tokens == 500
    harness.advance(1.0)
    harness.done(seconds=0.05)
    assert harness.dispatched[-1].num_tokens == 2500


@pytest.mark.holds("Neither class starves", "Two classes of work")
def test_bulk_waits_for_a_bounded_number_of_batches_however_small_they_are() -> None:
    harness = with_engine(FIXED, depth=1)
    harness.submit(100)
    bulk = harness.submit(90, request_class=BULK, outputs=OutputKind.TOKENS)
    for _ in range(4):
        harness.submit(1, request_class=INTERACTIVE)
        harness.done()
    assert bulk in [request_id for request_id, _ in harness.batch()]
