"""An engine that fails batch after batch gets no work but canaries, and is restarted if it fails them."""

import pytest

from batch_manager.scheduling.engines import CANARY_SECONDS, MAX_FAILURES, MAX_REFUTED, SOON_SECONDS, Loss
from engine.types import EngineErrorKind
from tests.batch_manager.sick_engines.failing import FAILED, NON_FINITE, canary_is_in, fail_in_a_row, with_engines


def test_an_engine_that_fails_in_a_row_gets_a_canary_and_nothing_else() -> None:
    harness = with_engines(2)
    requests = fail_in_a_row(harness, 0, MAX_FAILURES)
    assert canary_is_in(harness)
    requests += [harness.submit(10) for _ in range(5)]
    assert len(harness.engines[0].batches) == 1
    assert harness.scheduler.num_suspected == 1
    harness.done(0)
    assert harness.scheduler.num_suspected == 0
    requests.append(harness.submit(10))
    harness.finish_all()
    assert sorted(harness.finished) == requests
    assert not harness.restarted


def test_a_success_between_keeps_an_engine_trusted() -> None:
    harness = with_engines(2)
    for _ in range(MAX_FAILURES):
        fail_in_a_row(harness, 0, MAX_FAILURES - 1)
        harness.submit(10)
        harness.done(0)
    assert not canary_is_in(harness)
    assert harness.scheduler.num_suspected == 0


@pytest.mark.parametrize("kind", [FAILED, NON_FINITE, EngineErrorKind.FATAL])
def test_an_engine_that_fails_its_canary_is_restarted(kind: EngineErrorKind) -> None:
    harness = with_engines(2)
    fail_in_a_row(harness, 0, MAX_FAILURES)
    harness.fail(0, kind=kind)
    assert [(restart.engine_id, restart.loss) for restart in harness.restarted] == [(0, Loss.CANARY)]
    assert [engine.engine_id for engine in harness.scheduler.models[0].engines] == [1]
    harness.ready(0)
    assert harness.scheduler.num_suspected == 0


def test_the_only_engine_goes_on_while_it_is_suspected_and_nobody_is_blamed_for_its_restart() -> None:
    harness = with_engines(1, depth=3, streams=2)
    bad = [harness.submit(10) for _ in range(MAX_FAILURES)]
    for _ in bad:
        harness.fail(0)
    assert canary_is_in(harness)
    waiting = [harness.submit(50), harness.submit(50)]
    assert len(harness.engines[0].batches) == 3
    harness.fail(0)
    assert harness.restarted
    harness.ready(0)
    assert not any(batch.is_suspect for batch in harness.engines[0].batches)
    harness.finish_all()
    assert harness.finished == waiting
    assert set(harness.refused) == set(bad)


def test_an_engine_that_passes_canaries_and_fails_all_else_is_restarted() -> None:
    harness = with_engines(2)
    requests: list[int] = []
    while not harness.restarted and len(requests) < 100:
        requests += fail_in_a_row(harness, 0, 1)
        if 0 in harness.engines and canary_is_in(harness):
            harness.done(0)
    assert harness.restarted[0].loss is Loss.REFUTED
    assert len(requests) == MAX_REFUTED
    assert harness.finished == requests


def test_inputs_that_fail_everywhere_restart_nothing() -> None:
    harness = with_engines(2)
    bad = [harness.offer(10, 10) for _ in range(50)]
    harness.tick()
    while harness.open:
        for engine in list(harness.engines):
            while harness.engines[engine].batches:
                if harness.engines[engine].batches[0].is_canary:
                    harness.done(engine)
                else:
                    harness.fail(engine)
    assert set(harness.refused) == set(bad)
    assert not harness.restarted


def test_an_engine_that_computes_gets_a_canary_now_and_then() -> None:
    harness = with_engines(1)
    harness.submit(10)
    harness.done()
    harness.advance(CANARY_SECONDS + 1)
    harness.submit(10)
    assert not canary_is_in(harness), "an input is not kept waiting for it"
    harness.done()
    assert canary_is_in(harness)
    harness.done()
    harness.submit(10)
    harness.done()
    assert not canary_is_in(harness)


def test_another_batch_managers_engines_refute_the_only_one_too() -> None:
    """What fails on the only engine of a model here is tried by another batch manager."""
    harness = with_engines(1)
    for number in range(MAX_REFUTED):
        harness.submit(10)
        harness.fail(0)
        while canary_is_in(harness):
            harness.done(0)
        assert not harness.restarted, number
        harness.scheduler.refuted(0)
    harness.tick()
    assert [restart.loss for restart in harness.restarted] == [Loss.REFUTED]


def test_of_two_engines_nobody_knows_which_was_refuted_elsewhere() -> None:
    harness = with_engines(2)
    for _ in range(MAX_REFUTED):
        harness.scheduler.refuted(0)
    harness.tick()
    assert not harness.restarted


def test_a_failure_now_and_then_brings_a_canary_at_most_once_a_second() -> None:
    harness = with_engines(1)
    harness.submit(10)
    harness.done(0)
    harness.advance(SOON_SECONDS)
    for _ in range(2):
        harness.submit(10)
        harness.fail(0)
        assert canary_is_in(harness)
        harness.done(0)
        harness.submit(10)
        harness.fail(0)
        assert not canary_is_in(harness)
        harness.submit(10)
        harness.done(0)
        harness.advance(SOON_SECONDS)
