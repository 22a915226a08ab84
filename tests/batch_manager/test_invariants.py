"""Whatever happens in whatever order, the invariants of the harness hold, and in the end everybody has an answer."""

import math
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from batch_manager.messages import Policy, RequestRefusal
from batch_manager.scheduling.batches import Release
from engine.types import EngineErrorKind, EngineLimits, OutputKind
from tests.batch_manager.harness import Harness, Sequence, limits, sequences
from tests.tiers import full
from wire.vocabulary import RequestClass

NUM_MODELS = 2
POLICY = Policy(max_batch_tokens=60, min_batch_tokens=20)
MEASURED = Policy(min_batch_tokens=20)  # as large as the engines say
WEIGHTS = (1.0, 0.1, 7.5)
SEQLENS = st.lists(st.integers(1, 110), min_size=1, max_size=6) | st.lists(st.integers(1, 10), min_size=1, max_size=30)
LIMITS = st.builds(
    lambda streams, staged, overlaps, urgent_first, buckets, max_seqs, rate, target, group: limits(
        streams=streams,
        depth=streams + staged,
        overlaps=overlaps,
        puts_urgent_first=urgent_first,
        token_buckets=buckets,
        max_num_seqs=max_seqs,
        tokens_per_second=rate,
        target_num_tokens=target,
        group_tokens=group,
        max_batch_seconds=0.5,
        max_batch_seconds_mixed=0.1,
    ),
    st.integers(1, 3),
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (16, 32, 64)]),
    st.sampled_from([1, 5, 40]),
    st.sampled_from([0.0, 200.0]),
    st.sampled_from([0, 60, 100]),
    st.sampled_from([0, 90]),
)


class AnyOrder(RuleBasedStateMachine):
    """Frontends, engines and the clock do as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness(num_models=NUM_MODELS)

    @initialize(policy=st.sampled_from([POLICY, MEASURED]), engine_limits=st.lists(LIMITS, min_size=3, max_size=3))
    def start(self, policy: Policy, engine_limits: list[EngineLimits]) -> None:
        self.harness = Harness(policy, num_models=NUM_MODELS)
        for engine_id, its_limits in enumerate(engine_limits):
            self.harness.ready(engine_id, model=engine_id % NUM_MODELS, engine_limits=its_limits)

    @rule(
        seqlens=SEQLENS,
        share=st.sampled_from([0.0, 0.0, 0.1, 0.6, 1.0]),
        request_class=st.sampled_from(RequestClass),
        outputs=st.sampled_from([OutputKind.POOLED, OutputKind.POOLED | OutputKind.SPARSE]),
        model=st.integers(0, NUM_MODELS - 1),
        timeout=st.sampled_from([math.inf, 0.5, 3.0]),
        key=st.integers(0, 2),
        tick=st.booleans(),
    )
    def submit(self, seqlens: list[int], key: int, tick: bool, **options: Any) -> None:
        """A request, alone or the first of several that come together."""
        self.harness.offer(*seqlens, key=key, weight=WEIGHTS[key], **options)
        if tick:
            self.harness.tick()

    @precondition(lambda self: self.harness.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.harness.cancel(data.draw(st.sampled_from(sorted(self.harness.open))))

    @rule(engine_id=st.integers(0, 3), engine_limits=LIMITS)
    def ready(self, engine_id: int, engine_limits: EngineLimits) -> None:
        self.harness.ready(engine_id, model=engine_id % NUM_MODELS, engine_limits=engine_limits)

    @precondition(lambda self: self.harness.engines)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.harness.lose(data.draw(st.sampled_from(sorted(self.harness.engines))))

    @precondition(lambda self: self.busy())
    @rule(count=st.integers(1, 10), seconds=st.sampled_from([0.0, 0.01, 0.5]), newest=st.booleans())
    def done(self, count: int, seconds: float, newest: bool) -> None:
        """Some batches are finished, on all engines in turn, in either order."""
        for turn in range(count):
            if busy := self.busy():
                engine_id = busy[turn % len(busy)]
                which = len(self.harness.engines[engine_id].computing) - 1 if newest else 0
                self.harness.done(engine_id, which=which, seconds=seconds)

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), kind=st.sampled_from(EngineErrorKind))
    def fail(self, data: st.DataObject, kind: EngineErrorKind) -> None:
        engine_id = data.draw(st.sampled_from(self.busy()))
        which = data.draw(st.integers(0, len(self.harness.engines[engine_id].computing) - 1))
        self.harness.fail(engine_id, kind=kind, which=which)

    @rule(seconds=st.sampled_from([0.1, 0.2, 1.0, 6.0]))
    def advance(self, seconds: float) -> None:
        self.harness.advance(seconds)

    def busy(self) -> list[int]:
        return [engine_id for engine_id, engine in sorted(self.harness.engines.items()) if engine.batches]

    def teardown(self) -> None:
        harness = self.harness
        harness.tick()
        for model in range(NUM_MODELS):
            harness.ready(model, model=model)
        harness.drain()
        harness.finish_all()
        assert not harness.open
        assert not harness.scheduler.num_requests
        assert [model.queued_tokens for model in harness.scheduler.models] == [[0, 0]] * NUM_MODELS
        assert harness.scheduler.next_timer() == math.inf
        blamed = [refuse for refuse in harness.refused.values() if refuse.index >= 0]
        for refuse in blamed:
            assert refuse.index < harness.requests[refuse.request_id].num_seqs
        assert len(harness.finished) + len(harness.refused) + len(harness.cancelled) == len(harness.requests)


TestAnyOrder = AnyOrder.TestCase
pytest.mark.holds("Every accepted request ends exactly once")(TestAnyOrder)
TestAnyOrder.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def one_step(harness: Harness, chance: random.Random) -> None:
    """Something that happens, about as often as it does in a busy server with bad luck."""
    busy = [engine_id for engine_id, engine in sorted(harness.engines.items()) if engine.batches]
    dice = chance.random()
    if dice < 0.45 and len(harness.open) < 60:
        harness.offer(
            *(chance.randint(1, 30) for _ in range(chance.choice([1, 1, 1, 2, 12]))),
            share=chance.choice([0.0, 0.0, 0.7]),
            request_class=chance.choice(list(RequestClass)),
            outputs=chance.choice([OutputKind.POOLED, OutputKind.POOLED, OutputKind.SPARSE]),
            model=chance.randrange(NUM_MODELS),
            timeout=chance.choice([math.inf, 2.0, 0.5]),
            key=(key := chance.randrange(3)),
            weight=WEIGHTS[key],
        )
        if chance.random() < 0.5:
            harness.tick()
    elif dice < 0.90 and busy:
        engine_id = chance.choice(busy)
        harness.done(engine_id, which=chance.randrange(len(harness.engines[engine_id].computing)))
    elif dice < 0.92 and busy:
        harness.fail(chance.choice(busy), kind=chance.choice(list(EngineErrorKind)))
    elif dice < 0.925 and harness.engines:
        harness.lose(chance.choice(sorted(harness.engines)))
    elif dice < 0.94 and harness.open:
        harness.cancel(chance.choice(sorted(harness.open)))
    elif dice < 0.96:
        engine_id = chance.randrange(4)
        if engine_id not in harness.engines:
            streams = chance.choice([1, 2])
            engine_limits = limits(
                streams=streams,
                depth=streams + 1,
                overlaps=chance.random() < 0.5,
                puts_urgent_first=chance.random() < 0.7,
                tokens_per_second=200.0,
                group_tokens=chance.choice([0, 80]),
            )
            harness.ready(engine_id, model=engine_id % NUM_MODELS, engine_limits=engine_limits)
    else:
        harness.advance(chance.choice([0.05, 0.2]))


@pytest.mark.parametrize("seed", [0, *full(1, 2, 3)])
def test_a_long_life(seed: int) -> None:
    harness, chance = Harness(POLICY, num_models=NUM_MODELS), random.Random(seed)
    for _ in range(2500):
        one_step(harness, chance)
    assert len(harness.finished) > 300
    assert RequestRefusal.DEADLINE in {refuse.reason for refuse in harness.refused.values()}
    assert {batch.release for batch in harness.dispatched} >= {Release.RETRY, Release.ELSEWHERE, Release.SUSPECT}
    for model in range(NUM_MODELS):
        harness.ready(model, model=model)
    harness.drain()
    harness.finish_all()
    assert not harness.open


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.sampled_from(RequestClass)),
    min_size=1,
    max_size=12,
)


@pytest.mark.holds("A bad input fails alone")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    requests=REQUESTS,
    streams=st.integers(1, 2),
    overlaps=st.booleans(),
    urgent_first=st.booleans(),
    kills=st.booleans(),
    data=st.data(),
)
def test_only_what_is_to_blame_is_refused(
    requests: list[tuple[list[int], RequestClass]],
    streams: int,
    overlaps: bool,
    urgent_first: bool,
    kills: bool,
    data: st.DataObject,
) -> None:
    """Some sequences fail every batch they are in, or kill the engine each time they are computed."""
    harness = Harness(POLICY)
    for seqlens, request_class in requests:
        harness.offer(*seqlens, request_class=request_class)
    everything: list[Sequence] = [(one, at) for one in harness.requests for at in range(len(requests[one - 1][0]))]
    bad = data.draw(st.sets(st.sampled_from(everything), max_size=3))
    engine_limits = limits(streams=streams, depth=streams + 1, overlaps=overlaps, puts_urgent_first=urgent_first)
    harness.ready(engine_limits=engine_limits)
    while harness.open:
        computing = harness.engines[0].computing
        which = next((at for at, batch in enumerate(computing) if bad.intersection(sequences(batch.slices))), None)
        if which is None:
            harness.done()
        elif kills:
            harness.lose()
            harness.ready(engine_limits=engine_limits)
        else:
            harness.fail(which=which)
    assert set(harness.refused) == {request_id for request_id, _ in bad}
    reason = RequestRefusal.POISON if kills else RequestRefusal.ENGINE_FAILED
    for request_id in harness.refused:
        assert harness.refusal(request_id)[0] == reason
        assert (request_id, harness.refusal(request_id)[1]) in bad
