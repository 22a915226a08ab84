"""Deadlines, the grace for a lost engine, cancelling, draining, and when the scheduler wants to be woken."""

import math

import pytest

from batch_manager.messages import Policy, RequestRefusal
from engine.types import EngineErrorKind
from tests.batch_manager.harness import BULK, INTERACTIVE, Harness, limits, with_engine


@pytest.mark.holds("Expired work never reaches an engine", "Deadlines")
def test_a_deadline_that_passes_while_waiting_is_refused_at_its_time() -> None:
    harness = with_engine(depth=1)
    harness.submit(100)
    request = harness.submit(10, timeout=2.0)
    assert harness.scheduler.next_timer() == 1002.0
    harness.advance(1.9)
    assert request in harness.open
    harness.advance(0.1)
    assert harness.refusal(request) == (RequestRefusal.DEADLINE, -1)
    assert harness.scheduler.next_timer() == math.inf
    harness.done()
    assert not harness.engines[0].batches


def test_a_deadline_already_passed_on_arrival() -> None:
    harness = with_engine()
    assert harness.refusal(harness.submit(10, timeout=0.0)) == (RequestRefusal.DEADLINE, -1)


@pytest.mark.holds("Deadlines")
def test_a_deadline_that_passes_in_the_engine_does_not_matter() -> None:
    harness = with_engine()
    request = harness.submit(10, timeout=1.0)
    harness.advance(2.0)
    harness.done()
    assert harness.finished == [request]


def test_a_partly_waiting_request_is_refused_and_its_rows_dropped() -> None:
    harness = with_engine(depth=1)
    request = harness.submit(*[50] * 6, timeout=1.0)
    harness.done()
    harness.advance(1.0)
    assert harness.refusal(request) == (RequestRefusal.DEADLINE, -1)
    assert harness.queued_tokens(INTERACTIVE) == 100  # in the engine still
    harness.done()
    assert len(harness.dispatched) == 2
    assert harness.queued_tokens(INTERACTIVE) == 0


def test_a_deadline_that_passed_in_a_dying_engine_is_refused() -> None:
    harness = with_engine()
    lost, failed = harness.offer(10, timeout=1.0), harness.offer(10)
    harness.tick()
    harness.advance(2.0)
    harness.lose()
    assert harness.refusal(lost) == (RequestRefusal.DEADLINE, -1)
    harness.ready()
    harness.cancel(failed)
    late = harness.submit(10, 10, timeout=1.0)
    harness.done()
    harness.advance(2.0)
    harness.fail(kind=EngineErrorKind.FAILED)
    assert harness.refusal(late) == (RequestRefusal.DEADLINE, -1)


def test_many_deadlines_are_swept() -> None:
    harness = with_engine(max_num_tokens=100_000, max_num_seqs=100_000)
    watched = harness.offer(10, timeout=0.5)
    harness.offer(10, timeout=2.0)
    for _ in range(5):
        for _ in range(700):
            harness.scheduler.cancel(harness.offer(1, timeout=10.0))
            harness.open.remove(len(harness.requests))
    assert harness.scheduler.next_timer() == 1000.5
    assert len(harness.scheduler.models[0].deadlines[INTERACTIVE]._heap) < 1100
    harness.now += 1.0
    harness.tick()
    assert harness.refusal(watched) == (RequestRefusal.DEADLINE, -1)
    assert harness.scheduler.next_timer() == math.inf  # the other one is in the engine


@pytest.mark.holds("Cancellation")
def test_cancelling_costs_nothing_more() -> None:
    harness = with_engine(depth=1)
    harness.submit(100)
    left, kept = harness.submit(10, 10, request_class=BULK), harness.submit(10)
    harness.cancel(left)
    assert harness.queued_tokens(BULK) == 0
    harness.done()
    assert harness.batch() == [(kept, 0)]
    harness.cancel(left)
    harness.cancel(kept)
    harness.done()
    assert harness.finished == [1]


@pytest.mark.holds("When a process dies")
def test_without_an_engine_work_waits_for_the_grace_and_is_then_refused() -> None:
    harness = with_engine(Policy(engine_restart_grace=5.0, retry_after=7.0))
    held = harness.submit(10)
    harness.lose()
    waiting = harness.submit(10)
    assert harness.scheduler.next_timer() == 1005.0
    harness.advance(4.9)
    assert not harness.refused
    harness.advance(0.2)
    arriving = harness.submit(10)
    for request in (held, waiting, arriving):
        assert harness.refusal(request) == (RequestRefusal.NO_ENGINE, -1)
        assert harness.refused[request].retry_after == 7.0
    assert harness.scheduler.next_timer() == math.inf
    harness.ready()
    again = harness.submit(10)
    harness.done()
    assert harness.finished == [again]


def test_draining_finishes_what_is_held_and_takes_no_more() -> None:
    harness = Harness(num_models=2)
    harness.ready(engine_limits=limits(depth=1))
    computing, waiting = harness.submit(100), harness.submit(50)
    hopeless = harness.submit(10, model=1)
    harness.drain()
    assert harness.refusal(hopeless) == (RequestRefusal.STOPPING, -1)
    assert harness.refusal(harness.submit(10)) == (RequestRefusal.STOPPING, -1)
    harness.finish_all()
    assert harness.finished == [computing, waiting]
    assert harness.scheduler.num_requests == 0


def test_draining_does_not_wait_for_an_engine_to_come_back() -> None:
    harness = with_engine()
    request = harness.submit(10)
    harness.drain()
    harness.lose()
    assert harness.refusal(request) == (RequestRefusal.STOPPING, -1)
