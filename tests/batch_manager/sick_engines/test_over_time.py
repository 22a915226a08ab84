"""A sick engine beside a sound one, over many batches and seconds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_manager.scheduling.engines import CANARY_SECONDS, Loss
from tests.batch_manager.harness import Harness, Sequence, sequences
from tests.batch_manager.sick_engines.failing import FAILED, NON_FINITE
from tests.batch_manager.simulator import Sickness, Simulator
from tests.batch_manager.test_invariants import POLICY as SMALL
from tests.batch_manager.test_invariants import REQUESTS
from tests.batch_manager.test_simulation import INTERACTIVE, LIMITS, POLICY, queries
from tests.tiers import full
from wire.vocabulary import RequestClass

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
