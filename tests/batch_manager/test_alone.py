"""A query that waits alone gets the batch that it would get by way of the queues, and leaves the same behind."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_manager.messages import Policy
from batch_manager.scheduling.batches import ScheduledBatch
from batch_manager.scheduling.queue import Backlog
from engine.types import EngineLimits, OutputKind
from tests.batch_manager.harness import BULK, INTERACTIVE, Harness, limits, sequences
from tests.batch_manager.test_invariants import LIMITS, WEIGHTS

REQUESTS = st.tuples(
    st.just("offer"),
    st.lists(st.integers(1, 70), min_size=1, max_size=3) | st.integers(1, 70).map(lambda seqlen: [seqlen]),
    st.sampled_from([INTERACTIVE, INTERACTIVE, BULK]),
    st.sampled_from([OutputKind.POOLED, OutputKind.SPARSE]),
    st.integers(0, 2),
)
STEPS = st.lists(
    REQUESTS
    | st.sampled_from([("tick",), ("tick",), ("done",), ("advance",)])
    | st.tuples(st.just("cancel"), st.integers(1, 20)),
    max_size=40,
)


def states(steps: list[tuple[Any, ...]], engine_limits: EngineLimits) -> Iterator[tuple[Any, ...]]:
    """What is visible of the scheduler after each step."""
    harness = Harness(Policy(max_batch_tokens=60, min_batch_tokens=20))
    harness.ready(engine_limits=engine_limits)
    for step, *values in steps:
        match step:
            case "offer":
                seqlens, request_class, outputs, key = values
                weight = WEIGHTS[key]
                harness.offer(*seqlens, request_class=request_class, outputs=outputs, key=key, weight=weight)
            case "tick":
                harness.tick()
            case "done" if harness.engines[0].batches:
                harness.done()
            case "advance":
                harness.advance(0.2)
            case "cancel" if values[0] in harness.open:
                harness.cancel(values[0])
        model = harness.scheduler.models[0]
        backlog, now = model.backlog, harness.now
        yield (
            [seen(batch) for batch in harness.dispatched],
            (list(model.queued_tokens), list(backlog.num_tokens), model.free_at_by_class(now), model.lanes),
            [(shares._had, shares._served) for shares in backlog._shares if step in ("tick", "done")],
            (backlog._owed, list(backlog._suspect_was_last)),
        )


def seen(batch: ScheduledBatch) -> tuple[Any, ...]:
    """All that is known of a batch."""
    facts = batch.max_tokens, batch.max_seqlen, batch.num_tokens, batch.num_seqs, batch.release, batch.began
    flags = batch.is_urgent, batch.is_beside, batch.is_suspect, batch.gives_way, batch.passed_tokens
    return batch.batch_id, sequences(batch.slices), facts, flags


@settings(deadline=None)
@given(steps=STEPS, engine_limits=LIMITS)
def test_equals_the_way_by_the_queues(steps: list[tuple[Any, ...]], engine_limits: EngineLimits) -> None:
    """Whatever comes before and after, alone or together with others, and whatever the engine is like."""
    by_itself = list(states(steps, engine_limits))
    with patch.object(Backlog, "take_alone", lambda *_: None):
        assert by_itself == list(states(steps, engine_limits))


@pytest.mark.parametrize("num_others", [0, 1])
def test_is_in_no_queue_while_alone(num_others: int) -> None:
    """Nor is a queue made for it; one that comes in the same tick shares its batch."""
    harness = Harness()
    harness.ready()
    harness.offer(7)
    for _ in range(num_others):
        harness.offer(5)
    harness.tick()
    assert [batch.num_seqs for batch in harness.dispatched] == [1 + num_others]
    assert bool(harness.scheduler.models[0].backlog._queues) == bool(num_others)


def test_cancelled_while_alone() -> None:
    """Nothing is sent of it, and it counts no more."""
    harness = Harness()
    harness.ready()
    harness.cancel(harness.offer(7))
    assert not harness.dispatched
    assert not harness.scheduler.models[0].waits


def test_a_key_whose_query_was_given_up_saves_up_no_claim() -> None:
    """It was in a queue, behind a query that was computed. Another key then sends many, each alone, and at last both
    have much to do: they get the same."""
    harness = Harness(Policy(max_batch_tokens=100, min_batch_tokens=60))
    harness.ready(engine_limits=limits(depth=1))
    harness.submit(10, key=0)
    given_up = harness.submit(10, key=1)
    harness.scheduler.models[0].backlog.oldest(INTERACTIVE)  # as the worker does after each event
    harness.cancel(given_up)
    for _ in range(100):
        harness.done()
        harness.submit(15, key=0)
    owners = {harness.offer(15, key=key): key for _ in range(100) for key in (0, 1)}
    num_before = len(harness.dispatched)
    for _ in range(10):
        harness.done()
    found = [owners[slice_.request.request_id] for batch in harness.dispatched[num_before:] for slice_ in batch.slices]
    assert abs(found.count(0) - found.count(1)) <= 2
    assert len(found) >= 20


def test_waits_for_the_only_engine() -> None:
    """A query that came while no engine was there, and one that came while it computed."""
    harness = Harness()
    first = harness.submit(7)
    harness.ready(engine_limits=limits(depth=1))
    second = harness.submit(9)
    assert [sequences(batch.slices) for batch in harness.dispatched] == [[(first, 0)]]
    harness.done()
    assert [sequences(batch.slices) for batch in harness.dispatched] == [[(first, 0)], [(second, 0)]]
