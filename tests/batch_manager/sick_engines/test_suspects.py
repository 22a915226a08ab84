"""Sequences that an engine died of are tried in groups, until the culprit is alone."""

import pytest

from batch_manager.messages import RequestRefusal
from tests.batch_manager.harness import Harness, limits, sequences


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
    assert harness.refusal(bad[0]) == (RequestRefusal.POISON, bad[1])
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
