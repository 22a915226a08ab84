"""The batch manager's process: real sockets and the real clock around the scheduler."""

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from batch_manager.messages import RequestRefusal, RequestRefused, RequestResults, Submission
from engine.types import EngineLimits, OutputKind
from tests.batch_manager.peers import (
    LIMITS,
    assert_same,
    expected,
    ids_of,
    refusal,
    rows_of,
    running,
    submission,
    until,
)
from wire.parts import Part
from wire.vocabulary import RequestClass

pytestmark = pytest.mark.both_loops

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK


@pytest.mark.holds("Every text gets its own row")
async def test_rows_come_back_to_whom_they_belong(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        manager.engine.is_automatic = True
        frontends = [await manager.frontend(), await manager.frontend()]
        asked = [submission(*seqlens, first=100 * at) for at, seqlens in enumerate([(5,), (3, 4), (1,), (9, 2, 2)])]
        answers = await asyncio.gather(*(frontends[at % 2].ask(one) for at, one in enumerate(asked)))
        for answer, one in zip(answers, asked, strict=True):
            assert_same(answer, expected(one))


async def test_requests_that_come_together_share_a_batch(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        manager.engine.is_automatic = True
        frontend = await manager.frontend()
        await frontend.ask(submission(1))
        await asyncio.gather(*(frontend.ask(submission(2, first=at)) for at in range(10)))
        assert manager.engine.num_batches == 2


@pytest.mark.parametrize(
    "outputs", [OutputKind.POOLED, OutputKind.TOKENS, OutputKind.POOLED | OutputKind.TOKENS], ids=str
)
async def test_a_request_larger_than_a_batch_is_split_and_rejoined(tmp_path: Path, outputs: OutputKind) -> None:
    async with running(tmp_path) as manager:
        manager.engine.is_automatic = True
        frontend = await manager.frontend()
        large = submission(*range(1, 60), outputs=outputs)
        small = submission(7, 8, first=5000, outputs=outputs)
        answers = await asyncio.gather(frontend.ask(large), frontend.ask(small))
        assert manager.engine.num_batches > 10
        assert_same(answers[0], expected(large))
        assert_same(answers[1], expected(small))


async def test_parts_may_come_in_any_order(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        engine = manager.engine
        engine.limits = EngineLimits(max_num_tokens=100, max_num_seqs=16, max_seqlen=100, streams=2, depth=2)
        frontend = await manager.frontend()
        one = submission(60, 60, outputs=OutputKind.POOLED | OutputKind.TOKENS)
        answer = frontend.submit(one)
        (first, first_batch), (second, second_batch) = [await manager.engine.batches.get() for _ in range(2)]
        manager.engine.answer(second, rows_of(second_batch), 0.25)
        manager.engine.answer(first, rows_of(first_batch), 0.5)
        result = await answer
        assert_same(result, expected(one))
        assert isinstance(result, RequestResults)
        assert result.compute_seconds == 0.75
        assert 0 <= result.queue_seconds < 20


async def test_types_of_tokens_travel_and_are_zero_where_none_were_given(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        manager.engine.is_automatic = True
        frontend = await manager.frontend()
        ids, types = ids_of(40, 50, 30), (ids_of(40, 50, 30) % 3).astype(np.int32)
        parts = {Part.TOKEN_TYPE_IDS: types.tobytes()}
        given = Submission(0, INTERACTIVE, OutputKind.POOLED, float("inf"), (40, 50, 30), ids.tobytes(), parts)
        answers = await asyncio.gather(frontend.ask(given), frontend.ask(submission(4)))
        assert_same(answers[0], expected(given))
        assert_same(answers[1], expected(submission(4)))


@pytest.mark.holds("Cancellation")
async def test_a_cancelled_request_is_not_computed_and_not_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        computing = frontend.submit(submission(90))
        frame_id, batch = await manager.engine.batches.get()
        cancelled = frontend.submit(submission(50, 30))
        kept = frontend.submit(submission(5))
        await until(lambda: manager.page.queued_tokens[1, 0, INTERACTIVE] == 175)
        frontend.cancel(2)
        await until(lambda: manager.page.queued_tokens[1, 0, INTERACTIVE] == 95)
        manager.engine.is_automatic = True
        manager.engine.answer(frame_id, rows_of(batch))
        assert_same(await computing, expected(submission(90)))
        assert_same(await kept, expected(submission(5)))
        assert not cancelled.done()
        frontend.cancel(2)  # once more, and for one that is answered
        frontend.cancel(1)
        assert_same(await frontend.ask(submission(6)), expected(submission(6)))


async def test_a_deadline_is_kept_by_the_clock(tmp_path: Path) -> None:
    async with running(tmp_path, has_engines=False) as manager:
        frontend = await manager.frontend()
        asked_at = time.monotonic()

        async def refused_after(wait: float) -> float:
            assert refusal(await frontend.ask(submission(5, deadline=asked_at + wait))) == (RequestRefusal.DEADLINE, -1)
            return time.monotonic() - asked_at

        waits = (0.2, 0.05)  # seconds; on a machine that is busy they can only be longer
        waited = await asyncio.gather(*map(refused_after, waits))
        assert all(seconds >= wait for seconds, wait in zip(waited, waits, strict=True))


async def test_no_engine_for_longer_than_the_grace(tmp_path: Path) -> None:
    async with running(tmp_path, has_engines=False, engine_restart_grace=0.05, retry_after=3.0) as manager:
        frontend = await manager.frontend()
        refused = await frontend.ask(submission(5))
        assert refusal(refused) == (RequestRefusal.NO_ENGINE, -1)
        assert isinstance(refused, RequestRefused)
        assert refused.retry_after == 3.0


async def test_a_new_manager_leaves_the_old_ones_rate_until_it_knows_better(tmp_path: Path) -> None:
    async with running(tmp_path, has_engines=False) as manager:
        manager.page.tokens_per_second[1, 0] = 123.0
        frontend = await manager.frontend()
        answer = frontend.submit(submission(60))
        await until(lambda: manager.page.queued_tokens[1, 0, INTERACTIVE] == 60)
        assert manager.page.tokens_per_second[1, 0] == 123.0
        manager.engine.is_automatic = True
        await manager.engine.open()
        await answer
        await until(lambda: manager.page.tokens_per_second[1, 0] > 123.0)


async def test_batch_ids_of_a_new_manager_are_not_those_of_the_old(tmp_path: Path) -> None:
    frame_ids = []
    for life in ("first", "second"):
        (tmp_path / life).mkdir()
        async with running(tmp_path / life) as manager:
            frontend = await manager.frontend()
            for _ in range(3):
                answer = frontend.submit(submission(5))
                frame_id, batch = await manager.engine.batches.get()
                frame_ids.append(frame_id)
                manager.engine.answer(frame_id, rows_of(batch))
                await answer
    assert len(set(frame_ids)) == 6


async def test_stopping_finishes_what_an_engine_can_do_and_refuses_new_work(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        held = frontend.submit(submission(60, 60))
        frame_id, batch = await manager.engine.batches.get()
        manager.child.stopping.set()
        await asyncio.sleep(0)  # then the manager knows
        assert refusal(await frontend.ask(submission(5))) == (RequestRefusal.STOPPING, -1)
        manager.engine.is_automatic = True
        manager.engine.answer(frame_id, rows_of(batch))
        while not manager.engine.batches.empty():  # those that came before it was automatic
            frame_id, batch = manager.engine.batches.get_nowait()
            manager.engine.answer(frame_id, rows_of(batch))
        assert_same(await held, expected(submission(60, 60)))
        await frontend.lost.wait()


async def test_stopping_without_an_engine_refuses_what_waits(tmp_path: Path) -> None:
    async with running(tmp_path, has_engines=False) as manager:
        frontend = await manager.frontend()
        held = frontend.submit(submission(60, 60))
        await until(lambda: manager.page.queued_tokens[1, 0, INTERACTIVE] == 120)
        manager.child.stopping.set()
        assert refusal(await held) == (RequestRefusal.STOPPING, -1)


async def test_the_page_and_the_metrics_tell_what_is_so(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        page, frontend = manager.page, await manager.frontend()
        began = time.monotonic()
        answers = [frontend.submit(submission(90)), frontend.submit(submission(30, request_class=BULK))]
        frame_id, batch = await manager.engine.batches.get()
        await until(lambda: page.queued_tokens[1, 0].tolist() == [90, 30])
        assert page.engines_ready[1, 0] == 1
        assert began <= page.oldest_since[1, 0, BULK] <= time.monotonic()
        assert page.oldest_since[1, 0, INTERACTIVE] == 0
        assert (page.last_batch_at[1, 0], page.tokens_per_second[1, 0]) == (0, 0)
        manager.engine.is_automatic = True
        manager.engine.answer(frame_id, rows_of(batch), 0.009)
        await asyncio.gather(*answers)
        await until(lambda: page.queued_tokens[1, 0].tolist() == [0, 0])
        assert page.last_batch_at[1, 0] >= began
        assert page.tokens_per_second[1, 0] > 0
        assert page.oldest_since[1].tolist() == [[0, 0]]
        assert not page.queued_tokens[0].any()
        manager.engine.cut()
        await until(lambda: page.engines_ready[1, 0] == 0)
        metrics = manager.child.metrics.drain()
        assert ["embedline_batch_release_total", "tiny", "full", 1] in metrics["counts"]
        assert ["embedline_batch_release_total", "tiny", "drained", 1] in metrics["counts"]
        histograms = {tuple(names): cells for *names, cells in metrics["histograms"]}
        sums = {names: (sum(cells[:-1]), cells[-1]) for names, cells in histograms.items()}
        assert sums["embedline_batch_tokens", "tiny"] == (2, 120)
        assert sums["embedline_batch_sequences", "tiny"] == (2, 2)
        assert {names for names in sums if "duration" in names[0]} == {
            ("embedline_queue_duration_seconds", "tiny", "interactive"),
            ("embedline_queue_duration_seconds", "tiny", "bulk"),
            ("embedline_engine_duration_seconds", "tiny"),
        }
        assert metrics["levels"] == [
            ["embedline_queue_sequences", "batch manager 1", 0],
            ["embedline_engines_suspected", "batch manager 1", 0],
        ]


async def test_the_engine_may_come_late(tmp_path: Path) -> None:
    async with running(tmp_path, has_engines=False) as manager:
        frontend = await manager.frontend()
        waiting, too_long = frontend.submit(submission(60)), frontend.submit(submission(5, LIMITS.max_seqlen + 1))
        await until(lambda: manager.page.queued_tokens[1, 0, INTERACTIVE] == 166)
        manager.engine.is_automatic = True
        await manager.engine.open()
        assert_same(await waiting, expected(submission(60)))
        assert refusal(await too_long) == (RequestRefusal.TOO_LONG, 1)
