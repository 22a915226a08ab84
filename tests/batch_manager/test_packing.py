"""How waiting sequences become batches: budget, limits, order, splitting, staging, buckets, models, engines."""

import pytest

from batch_manager.messages import Policy, RequestRefusal
from engine.types import EngineLimits, OutputKind
from tests.batch_manager.harness import BULK, INTERACTIVE, Harness, limits


def offered(harness: Harness, *requests: tuple[int, ...], **options: OutputKind) -> list[int]:
    """Requests that come together."""
    return [harness.offer(*seqlens, **options) for seqlens in requests]  # type: ignore[arg-type]


@pytest.mark.holds("An idle engine gets work at once")
def test_an_idle_engine_takes_what_there_is_at_once() -> None:
    harness = Harness()
    harness.ready()
    request = harness.submit(5)
    assert harness.batch() == [(request, 0)]
    harness.done()
    assert harness.finished == [request]


@pytest.mark.holds("Two classes of work")
def test_what_came_together_goes_together_in_order() -> None:
    harness = Harness()
    harness.ready()
    first, second, third = offered(harness, (5,), (7, 8), (9,))
    harness.tick()
    assert harness.batch() == [(first, 0), (second, 0), (second, 1), (third, 0)]


@pytest.mark.holds("Batches hold whole sequences")
def test_whole_sequences_up_to_the_token_budget() -> None:
    harness = Harness(Policy(max_batch_tokens=50))
    harness.ready()
    first, second, third = offered(harness, (20,), (25,), (6,))
    harness.tick()
    assert [batch.num_tokens for batch in harness.dispatched] == [45]
    harness.done()
    assert harness.batch() == [(third, 0)]
    harness.done()
    assert harness.finished == [first, second, third]


@pytest.mark.holds("Batches hold whole sequences", "Limits")
def test_sequences_up_to_the_engines_number() -> None:
    harness = Harness()
    harness.ready(engine_limits=limits(max_num_seqs=4))
    harness.offer(*[1] * 10)
    harness.tick()
    harness.finish_all()
    assert [batch.num_seqs for batch in harness.dispatched] == [4, 4, 2]


@pytest.mark.holds("Rows keep the order of the request", "Limits")
def test_a_request_larger_than_a_batch_is_split_and_rejoined() -> None:
    harness = Harness()
    harness.ready()
    request = harness.submit(*[30] * 10)
    harness.finish_all()
    assert [batch.num_seqs for batch in harness.dispatched] == [3, 3, 3, 1]
    assert harness.finished == [request]


def test_a_sequence_longer_than_the_budget_runs_alone() -> None:
    harness = Harness(Policy(max_batch_tokens=50))
    harness.ready()
    offered(harness, (10,), (90,), (10,))
    harness.tick()
    harness.finish_all()
    assert [batch.num_tokens for batch in harness.dispatched] == [10, 90, 10]


def test_a_sequence_no_engine_can_take_is_refused_with_its_place() -> None:
    harness = Harness()
    early = harness.submit(5, 101)
    harness.ready()
    late = harness.submit(101, 5)
    assert harness.refusal(early) == (RequestRefusal.TOO_LONG, 1)
    assert harness.refusal(late) == (RequestRefusal.TOO_LONG, 0)
    assert not harness.dispatched


@pytest.mark.holds("Batches hold whole sequences")
def test_output_kinds_do_not_mix_and_the_oldest_head_goes_first() -> None:
    harness = Harness()
    harness.ready(engine_limits=limits(depth=1))
    harness.submit(100)
    pooled = harness.submit(1)
    harness.advance(1)
    tokens = harness.submit(2, outputs=OutputKind.TOKENS)
    both = harness.submit(3, outputs=OutputKind.POOLED | OutputKind.TOKENS)
    harness.advance(1)
    later = harness.submit(4)
    harness.finish_all()
    assert harness.finished[1:] == [pooled, later, tokens, both]
    assert [batch.outputs for batch in harness.dispatched[1:]] == [1, 4, 5]


def test_one_batch_is_staged_behind_the_one_being_computed() -> None:
    harness = Harness()
    harness.ready()
    harness.submit(*[50] * 10)
    assert len(harness.engines[0].batches) == 2
    harness.done()
    assert len(harness.engines[0].batches) == 2


def test_no_batch_is_staged_that_is_smaller_than_the_one_before() -> None:
    harness = Harness()
    harness.ready()
    harness.submit(10)
    harness.submit(4)
    harness.submit(5)
    assert len(harness.engines[0].batches) == 1
    harness.submit(1)
    assert len(harness.engines[0].batches) == 2
    assert harness.dispatched[-1].num_seqs == 3


def test_an_idle_stream_takes_what_there_is() -> None:
    harness = Harness()
    harness.ready(engine_limits=limits(streams=2, depth=3))
    harness.submit(10)
    harness.submit(4)
    harness.submit(3)
    assert [batch.num_tokens for batch in harness.engines[0].batches] == [10, 4]


def wide(**changes: object) -> EngineLimits:
    """Limits that no batch here comes up to."""
    return limits(max_num_tokens=16_384, max_num_seqs=16_384, **changes)


@pytest.mark.holds("Idle streams share the waiting work")
def test_what_waits_is_shared_among_idle_streams() -> None:
    harness = Harness()
    harness.offer(*[10] * 100)
    harness.ready(engine_limits=wide(streams=3, depth=4))
    assert [batch.num_tokens for batch in harness.dispatched] == [330, 330, 340]


def test_what_waits_is_shared_among_idle_engines() -> None:
    harness = Harness()
    harness.ready(0, engine_limits=wide())
    harness.ready(1, engine_limits=wide(streams=2, depth=3))
    harness.submit(*[10] * 100)
    assert [sum(batch.num_tokens for batch in engine.batches) for engine in harness.engines.values()] == [330, 670]


def test_shares_are_not_made_smaller_than_is_worth_it() -> None:
    harness = Harness(Policy(min_batch_tokens=256))
    harness.ready(engine_limits=wide(streams=2, depth=3))
    harness.submit(*[10] * 30)
    assert [batch.num_tokens for batch in harness.dispatched] == [250, 50]


def test_an_engine_of_small_fixed_costs_has_small_shares() -> None:
    harness = Harness(Policy(min_batch_tokens=256))
    harness.ready(engine_limits=wide(streams=2, depth=3, target_num_tokens=512))
    harness.submit(*[10] * 10)
    assert [batch.num_tokens for batch in harness.dispatched] == [60, 40]


def test_a_stream_that_idles_alone_takes_all() -> None:
    harness = Harness()
    harness.ready(engine_limits=wide(streams=2, depth=3))
    harness.submit(10)
    harness.submit(*[10] * 100)
    assert [batch.num_tokens for batch in harness.dispatched] == [10, 1000]


def test_shares_keep_to_the_budget() -> None:
    harness = Harness(Policy(max_batch_tokens=300))
    harness.ready(engine_limits=wide(streams=2, depth=3))
    harness.submit(*[10] * 100)
    assert [batch.num_tokens for batch in harness.dispatched] == [300, 300, 300]


@pytest.mark.parametrize(("flag", "target", "expected"), [(None, 0, 900), (None, 200, 200), (500, 200, 500)])
def test_a_batch_is_as_large_as_the_flag_says_or_the_engine_gains_by(
    flag: int | None, target: int, expected: int
) -> None:
    harness = Harness(Policy(max_batch_tokens=flag))
    harness.ready(engine_limits=limits(max_num_tokens=900, max_num_seqs=1000, target_num_tokens=target))
    harness.submit(*[10] * 1000)
    assert harness.dispatched[0].num_tokens == expected


def test_the_least_loaded_engine_is_fed_first() -> None:
    harness = Harness()
    harness.ready(0)
    harness.ready(1)
    harness.submit(60)
    harness.submit(10)
    assert [sum(batch.num_tokens for batch in engine.batches) for engine in harness.engines.values()] == [60, 10]
    harness.submit(30)
    assert [len(engine.batches) for engine in harness.engines.values()] == [1, 2]


def test_models_do_not_share_engines() -> None:
    harness = Harness(num_models=2)
    harness.ready(0, model=0)
    other = harness.submit(5, model=1)
    assert not harness.dispatched
    harness.ready(1, model=1)
    assert harness.batch(1) == [(other, 0)]
    assert harness.queued_tokens(INTERACTIVE, model=1) == 5
    assert harness.queued_tokens(INTERACTIVE, model=0) == 0


def test_a_deep_queue_seals_batches_at_a_buckets_edge() -> None:
    harness = Harness(Policy(max_batch_tokens=90))
    harness.ready(engine_limits=limits(token_buckets=(32, 64, 128), max_num_seqs=1000))
    harness.submit(*[1] * 300)
    harness.finish_all()
    assert [batch.num_tokens for batch in harness.dispatched] == [64, 64, 64, 64, 44]


def test_a_queue_that_does_not_fill_the_budget_is_taken_whole() -> None:
    harness = Harness(Policy(max_batch_tokens=90))
    harness.ready(engine_limits=limits(token_buckets=(32, 64, 128), max_num_seqs=1000))
    harness.submit(*[1] * 80)
    assert [batch.num_tokens for batch in harness.dispatched] == [80]


def test_engines_of_one_model_with_different_limits_agree_on_the_shorter() -> None:
    harness = Harness()
    harness.ready(0)
    harness.submit(100)
    waiting = harness.submit(90)
    assert harness.batch(0) == [(1, 0)]
    harness.ready(1, engine_limits=limits(max_seqlen=80))
    assert harness.refusal(waiting) == (RequestRefusal.TOO_LONG, 0)
    harness.lose(1)
    assert harness.submit(90) not in harness.refused


def test_what_is_told_to_the_page() -> None:
    harness = Harness()
    model = harness.scheduler.models[0]
    assert model.tokens_per_second == 0
    harness.submit(60)
    harness.advance(1)
    harness.submit(50, 50, request_class=BULK)
    assert model.backlog.oldest(INTERACTIVE) == 1000.0
    harness.ready(0, engine_limits=limits(tokens_per_second=1000.0, streams=2, depth=3, max_num_tokens=1000))
    assert model.tokens_per_second == 2000.0
    assert (model.backlog.oldest(BULK), harness.queued_tokens(BULK)) == (float("inf"), 100)
    harness.done()
    assert model.last_batch_at == 1001.0
    rate = model.tokens_per_second
    harness.lose()
    assert model.tokens_per_second == rate > 0
    assert harness.queued_tokens(BULK) == 0
