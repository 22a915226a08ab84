"""API keys share a class by weight, in tokens, and what one leaves goes to the others."""

from collections import Counter

import pytest

from batch_manager.messages import Policy
from engine.types import EngineLimits, OutputKind
from tests.batch_manager.harness import BULK, Harness, limits, with_engine

pytestmark = pytest.mark.holds("API keys share a class by weight", "Fair shares")
FIXED = Policy(max_batch_tokens=1000)  # no caps in seconds: the rate is never known


def an_engine() -> EngineLimits:
    return limits(max_num_tokens=2000, max_seqlen=2000, max_num_seqs=10_000, depth=1)


def tokens_by_key(harness: Harness) -> Counter[int]:
    counted: Counter[int] = Counter()
    for batch in harness.dispatched:
        for slice_ in batch.slices:
            counted[slice_.request.key] += slice_.num_tokens
    return counted


@pytest.mark.parametrize("seqlens", [(50, 50, 50), (1000, 40, 300), (70, 400, 90)])
def test_keys_that_always_have_work_get_tokens_by_their_weights(seqlens: tuple[int, ...]) -> None:
    harness = Harness(FIXED)
    for key, (seqlen, weight) in enumerate(zip(seqlens, (1.0, 2.0, 0.5), strict=True)):
        for _ in range(3):
            harness.offer(*[seqlen] * (8_000 // seqlen), key=key, weight=weight)
    harness.ready(engine_limits=an_engine())
    for _ in range(34):
        harness.done()
    got = tokens_by_key(harness)
    assert [got[key] / got.total() for key in range(3)] == pytest.approx([2 / 7, 4 / 7, 1 / 7], abs=0.04)


def test_a_key_with_little_work_does_not_wait_for_one_with_much() -> None:
    harness = with_engine(FIXED, engine_limits=an_engine())
    for _ in range(20):
        harness.submit(*[10] * 200, key=0)
    query = harness.submit(10, key=1)
    harness.done()
    assert (query, 0) in harness.batch()


def test_nobody_saves_up_a_claim() -> None:
    """The second key comes when the first has had twenty batches; it gets half from then on, not all."""
    harness = with_engine(FIXED, engine_limits=an_engine())
    harness.submit(*[50] * 800, key=0)
    for _ in range(20):
        harness.done()
    harness.dispatched.clear()
    harness.submit(*[50] * 400, key=1)
    for _ in range(15):
        harness.done()
    got = tokens_by_key(harness)
    assert got[1] / got.total() == pytest.approx(0.5, abs=0.06)


def test_what_one_key_leaves_goes_to_the_others() -> None:
    harness = with_engine(FIXED, engine_limits=an_engine())
    harness.offer(*[10] * 10, key=0)
    harness.submit(*[10] * 1000, key=1)
    assert tokens_by_key(harness) == {0: 100, 1: 900}


def test_a_long_sequence_has_its_turn_too() -> None:
    harness = with_engine(FIXED, engine_limits=an_engine())
    long = harness.submit(2000, key=0)
    harness.submit(*[50] * 400, key=1)
    longer = harness.submit(2000, key=0)
    for _ in range(6):
        harness.done()
    assert harness.finished == [long, longer]


def test_keys_share_over_all_output_kinds_of_a_class() -> None:
    """One key's backlog of another kind is older than everything, and still takes turns."""
    harness = Harness(FIXED)
    for _ in range(20):
        harness.offer(*[10] * 200, key=0, outputs=OutputKind.TOKENS, request_class=BULK)
    harness.advance(1)
    harness.offer(*[10] * 4000, key=1, request_class=BULK)
    harness.ready(engine_limits=an_engine())
    for _ in range(20):
        harness.done()
    got = tokens_by_key(harness)
    assert got[0] / got.total() == pytest.approx(0.5, abs=0.06)


def test_a_key_with_work_of_two_kinds_starves_in_neither() -> None:
    harness = with_engine(FIXED, engine_limits=an_engine())
    harness.submit(*[10] * 4000, key=1)
    other = harness.submit(10, key=0, outputs=OutputKind.TOKENS)
    harness.advance(0.01)
    harness.submit(*[10] * 4000, key=0)
    for _ in range(6):
        harness.done()
    assert other in harness.finished


def test_what_comes_back_from_a_lost_engine_goes_first_whosever_it_is() -> None:
    harness = Harness(FIXED)
    harness.offer(*[10] * 300, key=0)
    harness.offer(*[10] * 300, key=1)
    harness.ready(0, engine_limits=limits(max_num_tokens=1000, max_seqlen=1000, max_num_seqs=1000, depth=2))
    staged = harness.batch(0)
    harness.lose(0)
    harness.ready(1, engine_limits=limits(max_num_tokens=1000, max_seqlen=1000, max_num_seqs=1000, depth=3))
    while not set(harness.batch(1)) & set(staged):
        harness.done(1, seconds=0.0)  # so that no rate is known
    again = harness.batch(1)
    assert len({harness.requests[request_id].key for request_id, _ in again}) == 2
    assert again == staged[: len(again)]
