"""How waiting sequences become batches: budget, limits, order, splitting, staging, buckets, models, engines."""

import pytest

from batch_manager.messages import Policy, RequestRefusal
from engine.types import EngineLimits, OutputKind
from tests.batch_manager.harness import BULK, INTERACTIVE, Harness, limits, with_engine


def offered(harness: Harness, *requests: tuple[int, ...], **options: OutputKind) -> list[int]:
    """Requests that come together."""
    return [harness.offer(*seqlens, **options) for seqlens in requests]  # type: ignore[arg-type]


@pytest.mark.holds("An idle engine gets work at once")
def test_an_idle_engine_takes_what_there_is_at_once() -> None:
    harness = with_engine()
    request = harness.submit(5)
    assert harness.batch() == [(request, 0)]
    harness.done()
    assert harness.finished == [request]


@pytest.mark.holds("Two classes of work")
def test_what_came_together_goes_together_in_order() -> None:
    harness = with_engine()
    first, second, third = offered(harness, (5,), (7, 8), (9,))
    harness.tick()
    assert harness.batch() == [(first, 0), (second, 0), (second, 1), (third, 0)]


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
    harness = with_engine(depth=1)
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
    harness = with_engine()
    harness.submit(*[50] * 10)
    assert len(harness.engines[0].batches) == 2
    harness.done()
    assert len(harness.engines[0].batches) == 2


def test_no_batch_is_staged_that_is_smaller_than_the_one_before() -> None:
    harness = with_engine()
    harness.submit(10)
    harness.submit(4)
    harness.submit(5)
    assert len(harness.engines[0].batches) == 1
    harness.submit(1)
    assert len(harness.engines[0].batches) == 2
    assert harness.dispatched[-1].num_seqs == 3


def test_an_idle_stream_takes_what_there_is() -> None:
    harness = with_engine(streams=2, depth=3)
    harness.submit(10)
    harness.submit(4)
    harness.submit(3)
    assert [batch.num_tokens for batch in harness.engines[0].batches] == [10, 4]


def wide(**changes: object) -> EngineLimits:
    """Limits that no batch here comes up to."""
    return limits(max_num_tokens=16_384, max_num_seqs=16_384, **changes)


def test_what_waits_is_shared_among_idle_engines() -> None:
    harness = Harness()
    harness.ready(0, engine_limits=wide())
    harness.ready(1, engine_limits=wide(streams=2, depth=3))
    harness.submit(*[10] * 100)
    assert [sum(batch.num_tokens for batch in engine.batches) for engine in harness.engines.values()] == [330, 670]


def test_a_stream_that_idles_alone_takes_all() -> None:
    harness = with_engine(engine_limits=wide(streams=2, depth=3))
    harness.submit(10)
    harness.submit(*[10] * 100)
    assert [batch.num_tokens for batch in harness.dispatched] == [10, 1000]


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


FAST = {"max_num_tokens": 16_384, "max_num_seqs": 16_384}
EDGES = {"token_buckets": (32, 64, 128), "max_num_seqs": 1000}
SIZES = {
    "whole sequences up to the budget": (Policy(max_batch_tokens=50), {}, [20, 25, 6], [45, 6]),
    "sequences up to the engine's number": (Policy(), {"max_num_seqs": 4}, [1] * 10, [4, 4, 2]),
    "a request larger than a batch": (Policy(), {}, [30] * 10, [90, 90, 90, 30]),
    "a sequence longer than the budget alone": (Policy(max_batch_tokens=50), {}, [10, 90, 10], [10, 90, 10]),
    "shares of idle streams": (Policy(), {**FAST, "streams": 3, "depth": 4}, [10] * 100, [330, 330, 340]),
    "shares as small as is worth it": (Policy(), {**FAST, "streams": 2, "depth": 3}, [10] * 30, [250, 50]),
    "smaller shares where each costs less": (
        Policy(), {**FAST, "streams": 2, "depth": 3, "target_num_tokens": 512}, [10] * 10, [60, 40],
    ),
    "shares within the budget": (
        Policy(max_batch_tokens=300), {**FAST, "streams": 2, "depth": 3}, [10] * 100, [300, 300, 300, 100],
    ),
    "as large as the engine takes": (Policy(), {"max_num_tokens": 900, "max_num_seqs": 1000}, [10] * 100, [900, 100]),
    "as large as it gains by": (
        Policy(), {"max_num_tokens": 900, "max_num_seqs": 1000, "target_num_tokens": 200}, [10] * 50, [200, 200, 100],
    ),
    "as large as the flag says": (
        Policy(max_batch_tokens=500), {**FAST, "target_num_tokens": 200}, [10] * 100, [500, 500],
    ),
    "a bucket's edge in a deep queue": (Policy(max_batch_tokens=90), EDGES, [1] * 300, [64, 64, 64, 64, 44]),
    "no edge where all fits": (Policy(max_batch_tokens=90), EDGES, [1] * 80, [80]),
    "as long as a batch may take": (Policy(), {**FAST, "tokens_per_second": 10_000.0}, [10] * 300, [2500, 500]),
    "not one sequence where it is slow": (Policy(), {**FAST, "tokens_per_second": 10.0}, [1] * 300, [256, 44]),
    "as long as the engine says": (
        Policy(), {**FAST, "tokens_per_second": 100_000.0, "max_batch_seconds": 0.025}, [10] * 300, [2500, 500],
    ),
    "small where each costs little": (
        Policy(), {**FAST, "tokens_per_second": 400.0, "target_num_tokens": 512}, [10] * 15, [100, 50],
    ),
    "2,048 of a model of 8B on a GPU": (  # they take 27 ms in FP8 on an H100; the fused engine allows 30
        Policy(),
        {
            **FAST, "tokens_per_second": 2048 / 0.027, "max_batch_seconds": 0.030,
            "token_buckets": (512, 768, 1024, 1536, 2048, 3072, 4096, 16_384),
        },
        [64] * 400,
        [2048],
    ),
}  # fmt: skip


@pytest.mark.holds("Batches hold whole sequences", "Rows keep the order of the request", "Limits")
@pytest.mark.holds("Idle streams share the waiting work")
@pytest.mark.parametrize(("policy", "engine", "seqlens", "expected"), SIZES.values(), ids=SIZES.keys())
def test_the_tokens_of_each_batch(
    policy: Policy, engine: dict[str, object], seqlens: list[int], expected: list[int]
) -> None:
    harness = Harness(policy)
    request = harness.offer(*seqlens)
    harness.ready(engine_limits=limits(**engine))
    harness.finish_all()
    assert [batch.num_tokens for batch in harness.dispatched][: len(expected)] == expected
    assert harness.finished == [request]
