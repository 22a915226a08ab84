"""Urgent batches in the engine around an executor: what is computed first, and who has to wait for a place."""

import dataclasses
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cpu.minibatch import (
    COST_IN_TOKENS,
    GIVING_WAY_SECONDS,
    MAX_PADDED_TOKENS,
    MIN_GIVING_WAY,
    MIN_PADDED_TOKENS,
    StreamSpeed,
    cut,
)
from engine.types import Batch, EngineError
from tests.engine.cpu.test_engine import Plain, engine, of_lengths
from tests.engine.tiny_models import batch
from tests.server_e2e.running import PATIENCE


def urgent(*seqlens: int) -> Batch:
    return dataclasses.replace(batch(of_lengths(*seqlens)), is_urgent=True)


@pytest.mark.holds("A query passes bulk")
def test_urgent_mini_batches_are_computed_before_those_that_wait() -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()
    plain = Plain(num_streams=1)

    def gate() -> None:
        has_begun.set()
        assert may_go_on.wait(PATIENCE)

    plain.gate = gate
    with engine(plain, has_wide=False) as loaded:
        loaded.submit(batch(of_lengths(400, 300, 200)))
        loaded.submit(batch(of_lengths(350)))
        assert has_begun.wait(PATIENCE)
        loaded.submit(urgent(5, 50))
        may_go_on.set()
        found = [loaded.collect() for _ in range(3)]
    assert [shape[1] for shape in plain.shapes] == [400, 56, 8, 304, 200, 352]
    assert [ticket for ticket, _ in found] == [3, 1, 2]
    assert not any(isinstance(results, EngineError) for _, results in found)


def test_urgent_batches_have_places_of_their_own() -> None:
    may_end, is_in = threading.Event(), threading.Event()
    with engine(Plain(gate=lambda: may_end.wait(PATIENCE))) as loaded:
        for _ in range(loaded.limits.depth):
            loaded.submit(batch(of_lengths(5)))
        for _ in range(loaded.limits.depth):
            loaded.submit(urgent(5))

        def one_more() -> None:
            loaded.submit(urgent(5))
            is_in.set()

        threading.Thread(target=one_more, daemon=True).start()
        assert not is_in.wait(0.05)
        may_end.set()
        assert is_in.wait(PATIENCE)
        assert {loaded.collect()[0] for _ in range(5)} == set(range(1, 6))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 4), st.sampled_from([64, 100, 512]))
def test_a_batch_that_gives_way_is_cut_small(seqlens: list[int], num_streams: int, most: int) -> None:
    one = dataclasses.replace(batch(of_lengths(*seqlens)), gives_way=True)
    mini_batches = cut(one, num_streams=num_streams, max_seqlen=300, max_giving_way=most)
    assert sum(len(mini_batch.numbers) for mini_batch in mini_batches) == len(seqlens)
    for mini_batch in mini_batches:
        assert mini_batch.index.size <= most or len(mini_batch.numbers) == 1


@pytest.mark.parametrize(
    ("token_seconds", "most"),
    [(1e-6, MAX_PADDED_TOKENS), (1e-4, 120 - COST_IN_TOKENS), (2e-4, MIN_GIVING_WAY), (1e-2, MIN_GIVING_WAY)],
)
def test_how_small_is_learned_from_how_long_mini_batches_take(token_seconds: float, most: int) -> None:
    assert GIVING_WAY_SECONDS == 0.012
    pace = StreamSpeed()
    assert pace.max_giving_way == MIN_PADDED_TOKENS, "nothing is known"
    pace.observe(400, 1.0)  # once, in a bad moment
    for num_padded in (20, 100, 500) * 40:
        pace.observe(num_padded, token_seconds * (num_padded + COST_IN_TOKENS))
    assert pace.max_giving_way == pytest.approx(most, abs=1)


def test_an_engine_that_is_slow_cuts_what_gives_way_smaller() -> None:
    plain = Plain(num_streams=1)
    with engine(plain, has_wide=False) as loaded:
        loaded._speed.observe(100, 1.0)
        loaded.submit(dataclasses.replace(batch(of_lengths(*[30] * 8)), gives_way=True))
        loaded.collect()
    assert plain.shapes == [(2, 32)] * 4


def test_in_a_batch_that_gives_way_short_mini_batches_are_between_long_ones() -> None:
    one = dataclasses.replace(batch(of_lengths(100, 200, 300, 150, 250)), gives_way=True)
    assert [mini_batch.seqlens.tolist() for mini_batch in cut(one, num_streams=2, max_seqlen=300)] == [
        [300],
        [100],
        [150],
        [250],
        [200],
    ]
