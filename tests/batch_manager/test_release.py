"""Why each batch was no larger: what operators read to know whether engines or clients are the bottleneck."""

from batch_manager.messages import Policy
from batch_manager.scheduling.batches import Release
from engine.types import EngineErrorKind, OutputKind
from tests.batch_manager.harness import BULK, Harness, limits


def releases(harness: Harness) -> list[Release]:
    return [batch.release for batch in harness.dispatched]


def test_full_and_then_drained() -> None:
    harness = Harness()
    harness.ready()
    harness.submit(*[30] * 5)
    harness.finish_all()

    assert releases(harness) == [Release.FULL, Release.DRAINED]


def test_full_by_the_number_of_sequences() -> None:
    harness = Harness()
    harness.ready(engine_limits=limits(max_num_seqs=4))
    harness.submit(*[1] * 6)
    harness.finish_all()

    assert releases(harness) == [Release.FULL, Release.DRAINED]


def test_cut_at_a_bucket_of_the_engine() -> None:
    harness = Harness()
    harness.ready(engine_limits=limits(token_buckets=(16, 64)))
    harness.submit(*[10] * 12)
    harness.finish_all()

    assert releases(harness)[0] is Release.BUCKET
    assert harness.dispatched[0].num_tokens == 60


def test_another_output_kind_waits() -> None:
    harness = Harness()
    harness.ready()
    harness.offer(5)
    harness.offer(5, outputs=OutputKind.TOKENS)
    harness.tick()
    harness.finish_all()

    assert releases(harness) == [Release.KIND, Release.DRAINED]


def test_short_because_queries_and_bulk_work_share_the_engine() -> None:
    harness = Harness(Policy(min_batch_tokens=10))
    fast = limits(tokens_per_second=100.0, max_batch_seconds=1.0, max_batch_seconds_mixed=0.3)
    harness.ready(engine_limits=fast)
    harness.offer(10)
    harness.offer(*[10] * 12, request_class=BULK)
    harness.tick()

    assert releases(harness)[0] is Release.CLASS
    assert harness.dispatched[0].num_tokens == 30


def test_other_idle_streams_get_their_part() -> None:
    harness = Harness(Policy(min_batch_tokens=10))
    harness.ready(engine_limits=limits(streams=2, depth=2))
    harness.submit(*[10] * 6)

    assert releases(harness) == [Release.SHARE, Release.DRAINED]


def test_parts_of_a_batch_that_failed() -> None:
    harness = Harness()
    harness.ready()
    harness.submit(5, 5)
    harness.fail(kind=EngineErrorKind.FAILED)
    harness.finish_all()

    assert releases(harness) == [Release.DRAINED, Release.RETRY, Release.RETRY]


def test_alone_after_its_engine_died() -> None:
    harness = Harness()
    harness.ready()
    harness.submit(5, 5)
    harness.lose()
    harness.ready()
    harness.finish_all()

    assert releases(harness) == [Release.DRAINED, Release.SUSPECT, Release.SUSPECT]
