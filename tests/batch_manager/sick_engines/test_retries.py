"""What fails on one engine is tried on another, and then in parts."""

import pytest

from batch_manager.messages import RequestRefusal
from batch_manager.scheduling.batches import Release
from engine.types import EngineErrorKind
from tests.batch_manager.harness import limits
from tests.batch_manager.sick_engines.failing import FAILED, NON_FINITE, OUT_OF_MEMORY, with_engines
from tests.batch_manager.test_simulation import INTERACTIVE


@pytest.mark.parametrize("kind", [FAILED, NON_FINITE])
def test_what_failed_on_one_engine_is_tried_as_it_is_on_another(kind: EngineErrorKind) -> None:
    harness = with_engines(2)
    request = harness.submit(10, 10, 10)
    harness.fail(0, kind=kind)
    assert not harness.engines[0].batches
    assert harness.batch(1) == [(request, 0), (request, 1), (request, 2)]
    assert harness.dispatched[-1].release is Release.ELSEWHERE
    harness.done(1)
    assert harness.finished == [request]


def test_what_fails_on_two_engines_is_halved_and_a_third_is_not_asked() -> None:
    harness = with_engines(3)
    request = harness.submit(10, 10)
    harness.fail(0)
    harness.fail(1)
    assert sorted(batch.num_seqs for engine in harness.engines.values() for batch in engine.batches) == [1, 1]
    harness.finish_all()
    assert harness.finished == [request]


def test_a_sequence_that_fails_alone_on_two_engines_is_refused() -> None:
    harness = with_engines(2)
    request = harness.submit(10)
    harness.fail(0)
    assert not harness.refused
    harness.fail(1, kind=NON_FINITE)
    assert harness.refusal(request) == (RequestRefusal.NON_FINITE, 0)


def test_a_batch_that_is_too_large_is_halved_at_once_and_a_sequence_tried_elsewhere() -> None:
    harness = with_engines(2)
    large = harness.submit(10, 10)
    harness.fail(0, kind=OUT_OF_MEMORY)
    assert [batch.num_seqs for batch in harness.dispatched[1:]] == [1, 1]
    harness.fail(0, kind=OUT_OF_MEMORY)
    harness.finish_all()
    assert harness.finished == [large]


def test_a_batch_that_no_other_engine_can_take_is_halved() -> None:
    harness = with_engines(1)
    harness.ready(1, engine_limits=limits(max_num_seqs=2))
    request = harness.submit(10, 10, 10)
    harness.fail(0)
    assert [batch.num_seqs for batch in harness.dispatched] == [3, 2, 1]
    harness.finish_all()
    assert harness.finished == [request]


def test_a_deadline_that_passes_while_an_engine_is_waited_for_is_told() -> None:
    harness = with_engines(2, depth=1)
    late = harness.submit(10, timeout=1.0)
    kept = harness.submit(10)
    harness.fail(0)
    assert not harness.engines[0].batches, "it waits for the other engine"
    harness.advance(1.5)
    assert harness.refusal(late) == (RequestRefusal.DEADLINE, -1)
    harness.done(1)
    assert harness.finished == [kept]
    assert not harness.engines[1].batches


def test_what_waits_for_an_engine_that_is_lost_goes_to_any() -> None:
    harness = with_engines(2, depth=1)
    first, second = harness.submit(10), harness.submit(10)
    harness.fail(0)
    harness.lose(1)
    harness.finish_all()
    assert sorted(harness.finished) == [first, second]


def test_a_client_that_left_is_not_waited_for() -> None:
    harness = with_engines(2, depth=1)
    left, kept = harness.submit(10), harness.submit(10)
    harness.fail(0)
    harness.cancel(left)
    harness.done(1)
    assert harness.finished == [kept]
    assert harness.queued_tokens(INTERACTIVE) == 0
