"""Engines that compute urgent batches before others: each class has a place of its own in them."""

import pytest

from batch_manager.messages import Policy, RequestRefusal
from engine.types import EngineErrorKind, EngineLimits, OutputKind
from tests.batch_manager.harness import BULK, Harness, limits, with_engine


def lanes(*, overlaps: bool = True, **changes: object) -> EngineLimits:
    """An engine on a CPU: 2,500 tokens are 0.25 s, 500 are 0.05 s; one batch is staged behind another."""
    fields: dict[str, object] = {
        "max_num_tokens": 4096,
        "max_num_seqs": 4096,
        "max_seqlen": 512,
        "tokens_per_second": 10_000.0,
        "puts_urgent_first": True,
        "overlaps": overlaps,
    }
    return limits(**(fields | changes))


def started(*, overlaps: bool = True, **changes: object) -> Harness:
    harness = with_engine(Policy(), engine_limits=lanes(overlaps=overlaps, **changes))
    return harness


def sizes(harness: Harness) -> list[int]:
    return [batch.num_tokens for batch in harness.dispatched]


@pytest.mark.holds("A query passes bulk")
@pytest.mark.parametrize("overlaps", [True, False])
def test_a_query_is_sent_at_once_however_much_bulk_there_is(overlaps: bool) -> None:
    harness = started(overlaps=overlaps)
    harness.submit(*[50] * 1000, request_class=BULK)
    assert sizes(harness) == [2500, 2500]
    query = harness.submit(10)
    assert harness.dispatched[-1].is_urgent
    assert (query, 0) in harness.batch()
    harness.done(which=harness.engines[0].computing.index(harness.dispatched[-1]))
    assert harness.finished == [query]


@pytest.mark.holds("A query passes bulk")
def test_no_bulk_is_beside_a_query_where_batches_overlap() -> None:
    harness = Harness(Policy())
    harness.offer(*[50] * 1000, request_class=BULK)
    query = harness.offer(10)
    harness.ready(engine_limits=lanes())
    assert [batch.is_urgent for batch in harness.dispatched] == [True, False, False]
    assert harness.dispatched[0].num_seqs == 1
    harness.done()
    assert harness.finished == [query]


def test_where_they_do_not_overlap_a_small_batch_of_queries_takes_some_bulk_along() -> None:
    harness = Harness(Policy(min_batch_tokens=256))
    harness.offer(*[50] * 1000, request_class=BULK)
    harness.offer(10)
    harness.ready(engine_limits=lanes(overlaps=False))
    assert sizes(harness) == [10 + 4 * 50, 500, 500]
    assert [batch.is_urgent for batch in harness.dispatched] == [True, False, False]


def test_bulk_of_another_kind_is_no_obstacle() -> None:
    harness = started(overlaps=False)
    harness.submit(*[50] * 200, request_class=BULK, outputs=OutputKind.TOKENS)
    query = harness.submit(10)
    assert harness.batch() == [(query, 0)]


@pytest.mark.parametrize(("overlaps", "expected"), [(True, 2500), (False, 500)])
def test_bulk_gives_way_while_queries_are_about(overlaps: bool, expected: int) -> None:
    """In small parts where batches overlap, in small batches elsewhere."""
    harness = started(overlaps=overlaps)
    harness.submit(*[50] * 1000, request_class=BULK)
    assert not any(batch.gives_way for batch in harness.dispatched)
    harness.submit(10)
    harness.done(which=harness.engines[0].computing.index(harness.dispatched[0]), seconds=0.25)
    newest = harness.dispatched[-1]
    assert (newest.is_urgent, newest.gives_way, newest.num_tokens) == (False, True, expected)


@pytest.mark.parametrize(("overlaps", "expected"), [(True, [300, 300]), (False, [500, 500])])
def test_queries_beside_bulk_are_sent_in_short_batches_where_these_overlap(overlaps: bool, expected: list[int]) -> None:
    """Each is then answered soon after it is computed; alone they go together, as they are computed faster so."""
    harness = started(overlaps=overlaps, tokens_per_second=18_000.0 if overlaps else 10_000.0)
    harness.submit(*[50] * 2000, request_class=BULK)
    harness.submit(*[50] * 100)
    assert [batch.num_tokens for batch in harness.dispatched if batch.is_urgent] == expected


def test_queries_that_come_while_one_is_computed_go_together() -> None:
    harness = started(overlaps=False)
    harness.submit(*[50] * 1000, request_class=BULK, outputs=OutputKind.TOKENS)
    harness.submit(40)
    second = harness.submit(10)
    assert harness.batch() == [(second, 0)]  # else it could be too late to go before the next of bulk
    waiting = [harness.submit(10) for _ in range(3)]
    harness.done()
    assert harness.batch() == [(request, 0) for request in waiting]


def test_a_small_query_does_not_wait_for_a_larger_one_where_bulk_leaves_core_after_core_free() -> None:
    harness = started()
    harness.submit(*[50] * 1000, request_class=BULK)
    harness.submit(40)
    second = harness.submit(10)
    assert harness.batch() == [(second, 0)]
    waiting = [harness.submit(10) for _ in range(3)]
    harness.done(which=2)
    assert harness.batch() == [(request, 0) for request in waiting]


@pytest.mark.holds("Neither class starves", "A query passes bulk")
def test_bulk_in_an_engine_is_passed_by_as_much_as_its_share_allows() -> None:
    """Queries come without end; once they have passed too much they wait for a batch of bulk."""
    harness = started(max_batch_seconds=0.05)
    bulk = harness.submit(*[50] * 20, request_class=BULK)  # two batches of 500
    for _ in range(200):
        harness.submit(50)
        engine = harness.engines[0]
        harness.done(which=engine.batches.index(engine.urgent[0] if engine.urgent else engine.others[0]), seconds=0.005)
        if bulk in harness.finished:
            break
    queries = sum(batch.num_tokens for batch in harness.dispatched if batch.is_urgent)
    assert queries / (queries + 1000) == pytest.approx(0.7, abs=0.05)


def test_an_engine_that_dies_puts_everything_it_may_have_computed_under_suspicion() -> None:
    harness = started(overlaps=False)
    bulk = [harness.submit(500, request_class=BULK) for _ in range(2)]
    queries = [harness.submit(50) for _ in range(2)]
    assert len(harness.engines[0].batches) == 4
    harness.lose()
    harness.ready(engine_limits=lanes(overlaps=False))
    assert harness.dispatched[-1].is_suspect  # the oldest query; the oldest bulk is the other suspect
    assert harness.batch() == [(queries[0], 0)]
    harness.lose()
    assert harness.refusal(queries[0]) == (RequestRefusal.POISON, 0)
    harness.ready(engine_limits=lanes(overlaps=False))
    harness.finish_all()
    assert set(harness.finished) == {*bulk, queries[1]}


def test_a_batch_of_queries_that_fails_is_tried_again_before_new_ones_and_beside_bulk() -> None:
    harness = started()
    harness.submit(*[50] * 1000, request_class=BULK)
    failing = harness.submit(10, 20)
    beside, later = harness.submit(10), harness.submit(10)
    harness.fail(which=2, kind=EngineErrorKind.FAILED)
    assert harness.batch() == [(failing, 0)]
    harness.done(which=2)
    assert harness.batch() == [(failing, 1)]
    for _ in range(3):
        harness.done(which=2)
    assert harness.finished == [beside, failing, later]


def test_what_the_engine_computed_of_queries_meanwhile_counts_as_speed() -> None:
    """A batch of bulk takes twice as long as else while as many tokens of queries pass it."""
    harness = started()
    harness.submit(*[50] * 50, request_class=BULK)
    for _ in range(5):
        harness.submit(500)
        harness.done(which=1, seconds=0.05)
    harness.done(seconds=0.5)
    assert harness.scheduler.models[0].rate.tokens_per_second == pytest.approx(10_000)


def test_two_engines_share_queries_by_what_they_have_of_them() -> None:
    harness = started()
    harness.ready(1, engine_limits=lanes())
    harness.submit(*[50] * 1000, request_class=BULK)
    harness.submit(40)
    harness.submit(10)
    assert [len(engine.urgent) for engine in harness.engines.values()] == [1, 1]
