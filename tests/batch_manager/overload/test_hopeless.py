"""What would be late even in the next batch is refused when that batch is formed, and never computed."""

from dataclasses import replace

import pytest

from batch_manager.messages import Policy, RequestRefusal
from tests.batch_manager.harness import BULK, Harness, limits, with_engine

pytestmark = pytest.mark.holds("Expired work never reaches an engine", "Deadlines")
POLICY = Policy(max_batch_tokens=1000)
SECONDS = 0.1  # of a batch of 100 tokens


def busy(depth: int = 1) -> Harness:
    """An engine that has just begun a batch of 100 tokens, at 1000 tokens a second."""
    harness = Harness(POLICY)
    sizes = limits(depth=depth, max_num_tokens=1000, max_seqlen=1000, max_num_seqs=1000)
    sizes = replace(sizes, tokens_per_second=1000.0, max_batch_seconds=10.0, max_batch_seconds_mixed=10.0)
    harness.ready(engine_limits=sizes)
    harness.submit(100)
    return harness


def done(harness: Harness) -> None:
    harness.advance(SECONDS)
    harness.done(seconds=SECONDS)


def test_a_batch_that_would_end_too_late_for_it_goes_without_it() -> None:
    harness = busy()
    late, in_time = harness.submit(100, timeout=0.25), harness.submit(100, timeout=0.35)
    done(harness)
    assert harness.refusal(late) == (RequestRefusal.TOO_LATE, -1)
    assert harness.batch() == [(in_time, 0)]
    assert late not in [slice_.request.request_id for batch in harness.dispatched for slice_ in batch.slices]


def test_it_need_not_be_at_the_head() -> None:
    harness = busy()
    harness.submit(*[100] * 10)
    late = harness.submit(100, timeout=1.0)
    done(harness)
    assert harness.refusal(late)[0] == RequestRefusal.TOO_LATE


def test_of_a_request_that_waits_in_part_too() -> None:
    harness = busy()
    request = harness.submit(*[500] * 4, timeout=1.5)
    done(harness)
    assert harness.batch() == [(request, 0), (request, 1)]
    harness.advance(1.0)
    harness.done(seconds=1.0)
    assert harness.refusal(request)[0] == RequestRefusal.TOO_LATE
    assert not harness.engines[0].batches


def test_behind_a_batch_the_rest_of_that_one_counts() -> None:
    harness = busy(depth=2)
    at = harness.scheduler.models[0].free_at(BULK, harness.now)
    assert at == pytest.approx(harness.now + SECONDS)
    harness.advance(0.06)
    late, in_time = harness.offer(100, timeout=0.13), harness.offer(100, timeout=0.3)
    harness.tick()
    assert harness.refusal(late)[0] == RequestRefusal.TOO_LATE
    assert harness.batch() == [(in_time, 0)]


def test_bulk_beside_makes_the_batch_longer() -> None:
    harness = busy()
    harness.submit(*[100] * 9, request_class=BULK)
    late = harness.submit(10, timeout=0.5)
    done(harness)
    assert harness.refusal(late)[0] == RequestRefusal.TOO_LATE


def test_engines_that_idle_share_what_waits() -> None:
    harness = Harness(POLICY)
    sizes = limits(depth=1, max_num_tokens=1000, max_seqlen=1000, max_num_seqs=1000)
    sizes = replace(sizes, tokens_per_second=1000.0, max_batch_seconds=10.0, target_num_tokens=80)
    for engine_id in range(2):
        harness.ready(engine_id, engine_limits=sizes)
    harness.submit(100)
    done(harness)
    harness.submit(*[100] * 6, timeout=0.45)
    assert not harness.refused
    assert [batch.num_tokens for batch in harness.dispatched[1:]] == [300, 300]


def test_while_no_engine_has_room_everything_waits() -> None:
    harness = busy()
    request = harness.submit(100, timeout=0.15)
    harness.tick()
    assert request in harness.open


def test_an_idle_engine_is_tried_where_its_speed_is_old_news() -> None:
    """A rate from a bad moment would otherwise keep everything out for ever."""
    harness = busy()
    done(harness)
    refused = harness.submit(100, timeout=0.05)
    assert harness.refusal(refused)[0] == RequestRefusal.TOO_LATE
    harness.advance(1.0)
    tried = harness.submit(100, timeout=0.05)
    assert harness.batch() == [(tried, 0)]


def test_before_a_rate_is_known_everything_is_tried() -> None:
    harness = with_engine(POLICY)
    request = harness.submit(100, timeout=0.001)
    assert harness.batch() == [(request, 0)]


def test_what_comes_back_from_a_lost_engine_is_watched_again() -> None:
    harness = busy()
    done(harness)
    request = harness.submit(100, timeout=5.0)
    assert harness.scheduler.next_timer() == float("inf")
    harness.lose()
    assert harness.scheduler.next_timer() == harness.now + 5.0
    harness.advance(5.0)
    assert harness.refusal(request)[0] in (RequestRefusal.DEADLINE, RequestRefusal.NO_ENGINE)
