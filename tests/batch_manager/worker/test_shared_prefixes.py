"""Batches of sequences that begin as the one before does: how large they get, and what is computed again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from batch_manager.messages import Policy, Submission
from batch_manager.worker import Quarantine
from engine.types import OutputKind
from tests.batch_manager.harness import BULK, INTERACTIVE, Harness, limits, with_engine
from tests.batch_manager.peers import assert_same, expected, ids_of, running, submission, until
from wire.parts import Part

SHORT = Policy(max_batch_tokens=40)
GAINS = Policy(min_batch_tokens=20)  # batches are as large as the engine gains by


def sizes(harness: Harness) -> list[tuple[int, int, int]]:
    """Of each batch that was sent: sequences, tokens that are computed, tokens that were sent."""
    return [(batch.num_seqs, batch.num_tokens, batch.sent_tokens) for batch in harness.dispatched]


@pytest.mark.holds("Equal texts and equal beginnings")
def test_a_prefix_counts_once_in_each_batch() -> None:
    """Sequences of 20 tokens, of which 10 are as in the one before."""
    harness = with_engine(SHORT)
    harness.submit(*[20] * 7, share=0.5, request_class=BULK)
    harness.finish_all()
    assert sizes(harness) == [(3, 40, 60), (3, 40, 60), (1, 20, 20)]


def test_halves_of_a_batch_that_failed_each_have_the_prefix() -> None:
    harness = with_engine(SHORT)
    harness.submit(*[20] * 3, share=0.5, request_class=BULK)
    harness.fail()
    harness.finish_all()
    assert sizes(harness)[1:] == [(2, 30, 40), (1, 20, 20)]


def test_a_turn_of_another_key_does_not_part_what_shares() -> None:
    """Each turn takes one sequence of 256 tokens, of which 128 are as in the one before."""
    harness = with_engine(max_num_tokens=2000, max_seqlen=2000)
    harness.submit(2000, request_class=BULK)
    for key in range(2):
        harness.offer(*[256] * 4, share=0.5, key=key, request_class=BULK)
    harness.tick()
    harness.finish_all()
    assert sizes(harness)[1:] == [(8, 1280, 2048)]
    assert [(slice_.start, slice_.stop) for slice_ in harness.dispatched[-1].slices] == [(0, 4)] * 2


def test_what_is_sent_of_a_batch_is_bounded_too() -> None:
    """An engine that computes 100 tokens takes 400: neither the rest of a request nor the next one goes over that."""
    for num_seqs, rest in ((9, [(3, 90, 90), (2, 40, 40)]), (8, [(4, 80, 80)])):
        harness = with_engine()
        harness.submit(100, request_class=BULK)
        harness.offer(*[50] * num_seqs, share=1.0, request_class=BULK)
        harness.offer(*[20] * 4, request_class=BULK)
        harness.tick()
        harness.finish_all()
        assert sizes(harness)[1:] == [(8, 57, 400), *rest]


@pytest.mark.holds("Two classes of work")
def test_documents_follow_the_first_in_one_batch_unless_queries_are_about() -> None:
    def batches(*, share: float = 0.5, ago: float = 31.0, policy: Policy = GAINS) -> list[tuple[int, int, int]]:
        harness = with_engine(policy, target_num_tokens=40, group_tokens=90)
        harness.submit(5, request_class=INTERACTIVE)
        harness.finish_all()
        harness.advance(ago)
        harness.submit(*[20] * 10, share=share, request_class=BULK)
        harness.finish_all()
        return sizes(harness)[1:]

    assert batches() == [(8, 90, 160), (2, 30, 40)]
    assert batches(ago=29.0) == [(3, 40, 60), (3, 40, 60), (3, 40, 60), (1, 20, 20)]
    assert batches(share=0.1)[0] == (2, 38, 40)  # too little in common
    assert batches(policy=SHORT)[0] == (3, 40, 60)  # --max-batch-tokens bounds all batches


def test_idle_engines_share_a_group_out() -> None:
    harness = Harness(GAINS)
    for engine_id in range(2):
        harness.ready(engine_id, engine_limits=limits(target_num_tokens=40, group_tokens=90))
    harness.submit(*[20] * 14, share=0.5, request_class=BULK)
    assert sizes(harness) == [(6, 70, 120), (8, 90, 160)]


def request_of(*seqlens: int, shared: list[int]) -> Submission:
    parts = {Part.SHARED: np.array(shared, np.int32).tobytes()}
    ids = ids_of(sum(seqlens)).tobytes()
    return Submission(0, BULK, OutputKind.POOLED, float("inf"), seqlens, ids, parts)


@pytest.mark.holds("Equal texts and equal beginnings")
async def test_an_engine_is_told_what_stands_in_the_same_slice(tmp_path: Path) -> None:
    async with running(tmp_path, max_batch_tokens=40) as manager:
        frontend = await manager.frontend()
        one = request_of(20, 20, 20, 20, 20, shared=[7, 10, 10, 10, 10])
        other = replace(submission(5, request_class=BULK), parts={Part.TOKEN_TYPE_IDS: ids_of(5).tobytes()})
        answers = [frontend.submit(one), frontend.submit(other)]
        batches = [await manager.engine.answer_next() for _ in range(2)]
        for asked, answer in zip((one, other), answers, strict=True):
            assert_same(await answer, expected(asked))
        told = [batch.shared.tolist() for batch in batches if batch.shared is not None]
        assert told == [[0, 10, 10], [0, 10, 0]]
        assert [count for count in manager.child.metrics.drain()["counts"] if "computed" in count[0]] == [
            ["embedline_computed_tokens_total", "tiny", 75]
        ]
        await until(lambda: not manager.page.queued_tokens.any())


def test_what_stands_before_a_sequence_is_no_part_of_it() -> None:
    """Whoever takes engines down is known again behind another sequence."""
    quarantine = Quarantine()
    quarantine.add(request_of(20, shared=[0]), 0, now=0.0)
    ids = b"".join([ids_of(10).tobytes(), ids_of(20).tobytes()])
    again = Submission(0, BULK, OutputKind.POOLED, float("inf"), (10, 20), ids, request_of(1, 1, shared=[0, 10]).parts)
    assert quarantine.find(again, now=1.0) == 1
