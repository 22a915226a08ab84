"""What becomes of work whose batch fails or whose engine dies."""

import pytest

from batch_manager.messages import Policy, RequestRefusal
from engine.types import EngineErrorKind, OutputKind
from tests.batch_manager.harness import BULK, INTERACTIVE, Harness, Sequence, limits, sequences, with_engine
from wire.vocabulary import RequestClass

FAILED, FATAL = EngineErrorKind.FAILED, EngineErrorKind.FATAL


def run_with_bad(harness: Harness, bad: set[Sequence], kind: EngineErrorKind = FAILED) -> None:
    """Let engine 0 compute all, failing every batch that holds one of these."""
    while harness.engines[0].batches:
        if bad.intersection(sequences(harness.engines[0].batches[0].slices)):
            harness.fail(kind=kind)
        else:
            harness.done()


def test_a_batch_that_is_too_large_for_the_memory_is_halved() -> None:
    harness = Harness()
    requests = [harness.offer(10) for _ in range(8)]
    harness.ready()
    while harness.engines[0].batches:
        if harness.engines[0].batches[0].num_tokens > 25:
            harness.fail(kind=EngineErrorKind.OUT_OF_MEMORY)
        else:
            harness.done()
    assert sorted(harness.finished) == requests
    assert sorted(batch.num_tokens for batch in harness.dispatched) == [20, 20, 20, 20, 40, 40, 80]


def test_a_failed_batch_falls_apart_into_its_classes_first() -> None:
    harness = Harness()
    bulk = harness.offer(3, 3, 3, request_class=BULK)
    query = harness.offer(3)
    harness.ready()
    assert harness.dispatched[0].num_seqs == 4
    run_with_bad(harness, {(bulk, 2)})
    assert harness.finished == [query]
    assert harness.refusal(bulk) == (RequestRefusal.ENGINE_FAILED, 2)
    assert harness.dispatched[1].num_seqs == 1


def test_what_was_staged_is_sent_again_in_order() -> None:
    harness = with_engine()
    first = harness.submit(50)
    second = harness.offer(30, 20)
    third = harness.offer(10)
    harness.tick()
    assert [batch.num_seqs for batch in harness.engines[0].batches] == [1, 3]
    harness.lose()
    assert harness.scheduler.models[0].backlog.num_tokens[INTERACTIVE] == 110
    fourth = harness.submit(40)
    harness.ready()
    assert harness.dispatched[2].is_suspect
    harness.done()
    assert harness.finished == [first]
    assert harness.batch() == [(second, 0), (second, 1), (third, 0), (fourth, 0)]


def test_rows_delivered_before_the_engine_died_stay() -> None:
    harness = with_engine()
    request = harness.submit(*[50] * 6)
    harness.done()
    harness.lose()
    harness.ready()
    harness.finish_all()
    assert harness.finished == [request]
    assert sum(batch.num_seqs for batch in harness.dispatched) == 6 + 4  # two computing, two staged, again


def test_suspects_run_alone_and_with_nothing_beside_them() -> None:
    harness = with_engine()
    suspects = [harness.offer(10) for _ in range(3)]
    harness.tick()
    harness.submit(100)
    harness.lose()
    harness.ready()
    staged = len(harness.requests)
    for request in [suspects[0], staged, suspects[1], suspects[2]]:
        assert [sequences(batch.slices) for batch in harness.engines[0].batches] == [[(request, 0)]]
        harness.done()
    assert len(harness.finished) == 4


@pytest.mark.parametrize("request_class", [INTERACTIVE, BULK])
def test_new_work_does_not_wait_for_many_suspects_nor_they_for_it(request_class: RequestClass) -> None:
    harness = with_engine(Policy(max_batch_tokens=40), max_num_seqs=1000)
    suspects = [harness.offer(1, request_class=request_class) for _ in range(16)]
    harness.tick()
    harness.lose()
    others = [harness.offer(20, request_class=request_class) for _ in range(10)]
    also = harness.offer(20, request_class=request_class, outputs=OutputKind.TOKENS)
    harness.ready(engine_limits=limits(max_num_seqs=1000))
    for _ in range(12):
        harness.done()
    assert [batch.is_suspect for batch in harness.dispatched[1:13]] == [True, False] * 6
    assert set(harness.finished) == {*suspects[:6], *others, also}


def test_suspects_of_bulk_get_their_turn_beside_much_other_work() -> None:
    harness = with_engine(Policy(max_batch_tokens=100))
    suspects = [harness.offer(1, request_class=BULK) for _ in range(5)]
    harness.tick()
    harness.lose()
    harness.offer(*[10] * 1000)
    later = harness.offer(*[10] * 1000, request_class=BULK)
    harness.ready()
    for _ in range(30):
        harness.done()
    assert set(suspects) <= set(harness.finished)
    assert harness.delivered[later]


def test_fatal_is_the_engines_death_and_the_lost_connection_after_it_is_nothing_new() -> None:
    harness = with_engine()
    request = harness.submit(10)
    stale = harness.engines[0].batches[0]
    harness.fail(kind=FATAL)
    harness.lose()
    assert not harness.scheduler.batch_done(0, stale.batch_id, compute_seconds=1.0, now=harness.now)
    assert not harness.scheduler.batch_failed(0, stale.batch_id, kind=FAILED, now=harness.now)
    harness.ready()
    harness.done()
    assert harness.finished == [request]


def test_an_engine_that_says_ready_twice_has_lost_what_it_held() -> None:
    harness = with_engine()
    request = harness.submit(10)
    harness.ready()
    harness.done()
    assert harness.finished == [request]
    assert len(harness.scheduler.models[0].engines) == 1


def test_later_work_of_its_class_does_not_pass_what_has_to_be_tried_again() -> None:
    harness = with_engine(depth=1)
    tried = [harness.offer(10, request_class=BULK) for _ in range(4)]
    harness.tick()
    later = harness.offer(10, request_class=BULK)
    harness.offer(10)
    harness.fail()
    assert harness.dispatched[-1].num_seqs == 1  # the query; a retry takes nothing along
    while later not in harness.finished:
        harness.done()
    assert set(tried) < set(harness.finished)


def test_a_retry_that_the_engine_left_can_not_take_is_packed_anew() -> None:
    harness = with_engine()
    requests = [harness.offer(10) for _ in range(10)]
    harness.tick()
    harness.fail()
    harness.lose()
    harness.ready(engine_limits=limits(max_num_tokens=100, max_num_seqs=2))
    harness.finish_all()
    assert sorted(harness.finished) == requests
