"""Engines that fail whatever they get: their work goes elsewhere, and they are tried with a canary and restarted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_manager.messages import Refusal
from batch_manager.scheduling.batches import Release
from batch_manager.scheduling.health import CANARY_SECONDS, MAX_FAILURES, MAX_REFUTED, SOON_SECONDS, Loss
from engine.types import EngineErrorKind
from tests.batch_manager.harness import Harness, Sequence, limits, sequences
from tests.batch_manager.simulator import Sickness, Simulator
from tests.batch_manager.test_invariants import POLICY as SMALL
from tests.batch_manager.test_invariants import REQUESTS
from tests.batch_manager.test_simulation import INTERACTIVE, LIMITS, POLICY, queries
from tests.tiers import full
from wire.vocabulary import RequestClass

FAILED, NON_FINITE, OUT_OF_MEMORY = (
    EngineErrorKind.FAILED,
    EngineErrorKind.NON_FINITE,
    EngineErrorKind.OUT_OF_MEMORY,
)


def with_engines(count: int, **its_limits: object) -> Harness:
    harness = Harness()
    for engine_id in range(count):
        harness.ready(engine_id, engine_limits=limits(**its_limits))
    return harness


def fail_in_a_row(harness: Harness, engine_id: int, count: int) -> list[int]:
    """Single requests that fail on this engine and are computed by another one; their ids."""
    requests = []
    for _ in range(count):
        requests.append(harness.submit(10))
        assert harness.batch(engine_id) == [(requests[-1], 0)]
        harness.fail(engine_id)
        harness.done(1 - engine_id)
    return requests


def canary_is_in(harness: Harness, engine_id: int = 0) -> bool:
    return any(batch.is_canary for batch in harness.engines[engine_id].batches)


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


# Retries


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
    assert harness.refusal(request) == (Refusal.NON_FINITE, 0)


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
    assert harness.refusal(late) == (Refusal.DEADLINE, -1)
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


# The circuit breaker


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


SEVERAL = st.lists(st.booleans(), min_size=40, max_size=40)


@pytest.mark.holds("A bad input fails alone")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(requests=REQUESTS, passes=st.booleans(), order=SEVERAL, data=st.data())
def test_a_sick_engine_takes_nothing_down_but_what_is_bad(
    requests: list[tuple[list[int], RequestClass]], passes: bool, order: list[bool], data: st.DataObject
) -> None:
    """Engine 1 fails whatever it gets, in each of its lives; some sequences fail on engine 0 too."""
    harness = Harness(SMALL)
    harness.ready(0)
    harness.ready(1)
    for seqlens, request_class in requests:
        harness.submit(*seqlens, request_class=request_class)
    everything: list[Sequence] = [(one, at) for one in harness.requests for at in range(len(requests[one - 1][0]))]
    bad = data.draw(st.sets(st.sampled_from(everything), max_size=3))
    step = 0
    while harness.open:
        busy = [
            engine_id for engine_id in (0, 1) if engine_id in harness.engines and harness.engines[engine_id].batches
        ]
        engine_id = busy[-1] if order[step % len(order)] else busy[0]
        step += 1
        batch = harness.engines[engine_id].batches[0]
        is_well = engine_id == 0 and not bad.intersection(sequences(batch.slices))
        if is_well or (batch.is_canary and passes):
            harness.done(engine_id)
        else:
            harness.fail(engine_id)
        if 1 not in harness.engines:
            harness.ready(1)
    assert set(harness.refused) == {request_id for request_id, _ in bad}
    # of a batch of 16, which is cut by class and in four halvings; a restart can make it a part of another batch
    assert max(harness.num_failures.values(), default=0) <= 2 * (1 + 1 + 4) * (1 + len(harness.restarted))


# Suspects


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("culprit", [0, 500, 1023])
def test_the_culprit_among_a_thousand_is_found_by_three_deaths_and_few_batches(overlaps: bool, culprit: int) -> None:
    large = limits(max_num_tokens=2048, max_num_seqs=1024, overlaps=overlaps)
    harness = Harness()
    request = harness.offer(*[1] * 512)
    other = harness.offer(*[1] * 512)
    harness.ready(engine_limits=large)
    bad = (request, culprit) if culprit < 512 else (other, culprit - 512)
    num_deaths = 0
    while harness.engines[0].batches:
        if bad in sequences(harness.engines[0].batches[0].slices):
            num_deaths += 1
            harness.lose()
            harness.ready(engine_limits=large)
        else:
            harness.done()
    assert harness.refusal(bad[0]) == (Refusal.POISON, bad[1])
    assert harness.finished == [other if bad[0] == request else request]
    assert num_deaths == 3
    assert len(harness.dispatched) <= 1 + 64


def test_a_group_of_suspects_that_fails_without_a_death_is_cleared() -> None:
    harness = Harness()
    request = harness.offer(*[1] * 80)
    harness.ready(engine_limits=limits(max_num_seqs=128))
    harness.lose()
    harness.ready(engine_limits=limits(max_num_seqs=128))
    assert (harness.dispatched[1].num_seqs, harness.dispatched[1].is_suspect) == (9, True)
    harness.fail(0)
    assert not harness.dispatched[2].is_suspect
    harness.finish_all()
    assert harness.finished == [request]


def test_a_group_of_suspects_that_is_too_large_for_another_engine_is_cut() -> None:
    harness = Harness()
    request = harness.offer(*[1] * 80)
    harness.ready(engine_limits=limits(max_num_seqs=128))
    harness.lose()
    harness.ready(engine_limits=limits(max_num_seqs=3))
    harness.finish_all()
    assert harness.finished == [request]
    assert all(batch.num_seqs <= 3 for batch in harness.dispatched[1:])


def test_clients_that_leave_a_group_of_suspects_take_their_part_with_them() -> None:
    harness = Harness()
    left, kept = harness.offer(*[1] * 20), harness.offer(*[1] * 20)
    harness.ready(engine_limits=limits(max_num_seqs=64))
    harness.lose()
    harness.cancel(left)
    harness.ready(engine_limits=limits(max_num_seqs=64))
    harness.finish_all()
    assert harness.finished == [kept]
    assert sum(batch.num_seqs for batch in harness.dispatched[1:]) == 20


# Over many seconds


@pytest.mark.holds("A sick engine costs no answers")
@pytest.mark.parametrize(
    ("sickness", "loss"),
    [
        (Sickness(FAILED), Loss.CANARY),
        (Sickness(FAILED, passes_canaries=True), Loss.REFUTED),
        *full((Sickness(NON_FINITE), Loss.CANARY)),
    ],
    ids=["failed", "canaries pass", "non-finite"],
)
def test_one_of_two_engines_that_fails_at_once_costs_nothing(sickness: Sickness, loss: Loss) -> None:
    """At 40 % of what two engines compute. Without retries elsewhere and the breaker a third of the requests failed."""
    simulator = Simulator(POLICY, LIMITS, seed=11, num_engines=2)
    simulator.sicken(0, sickness, after=1.0)
    simulator.run([queries(0.8)], 4.0)
    outcome = simulator.outcomes[INTERACTIVE]
    assert outcome.num_admitted > 7_000
    assert len(outcome.refusals) <= 0.001 * outcome.num_admitted
    assert len(outcome.latencies) + len(outcome.refusals) == outcome.num_admitted
    assert set(simulator.losses) == {loss}
    assert len(simulator.losses) >= 2, "it is restarted each time that it comes back"


def test_rows_that_turn_wrong_are_noticed_by_the_next_canary() -> None:
    simulator = Simulator(POLICY, LIMITS, seed=12, num_engines=2)
    simulator.sicken(0, Sickness(None, is_cured_by_restart=True), after=1.0)
    simulator.run([queries(0.1)], 13.0)
    outcome = simulator.outcomes[INTERACTIVE]
    assert simulator.losses == [Loss.CANARY]
    assert 0 < outcome.num_wrong <= outcome.num_admitted * CANARY_SECONDS / 13.0
    assert len(outcome.latencies) == outcome.num_admitted
