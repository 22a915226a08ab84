"""The batch manager's process when its engines and frontends fail it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batch_manager import messages
from batch_manager.messages import RequestRefusal, Submission
from engine import messages as engine_messages
from engine.types import Batch, EngineErrorKind, OutputKind, Results, Rows
from tests.batch_manager.peers import (
    assert_same,
    expected,
    ids_of,
    refusal,
    rows_of,
    running,
    submission,
    until,
)
from wire.vocabulary import RequestClass

pytestmark = [pytest.mark.faults, pytest.mark.both_loops]

INTERACTIVE = RequestClass.INTERACTIVE


async def test_an_engine_that_is_lost_and_comes_back_costs_a_retry(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        computing, staged = submission(60), submission(70, 20, 30, first=500)
        answers = [frontend.submit(computing), frontend.submit(staged)]
        await manager.engine.batches.get()
        await until(lambda: manager.engine.num_batches == 2)
        manager.engine.is_automatic = True
        manager.engine.cut()
        for answer, one in zip(answers, [computing, staged], strict=True):
            assert_same(await answer, expected(one))
        manager.engine.cut()  # with nothing in it
        await until(lambda: manager.page.engines_ready[1, 0] == 0)
        counts = manager.child.metrics.drain()["counts"]
        assert ["embedline_batch_failures_total", "tiny", "lost", 2] in counts


async def test_a_sequence_that_takes_the_engine_down_twice_is_poison(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        manager.engine.script(lambda frame_id, batch: manager.engine.cut(), token_id=13)
        good, bad = submission(3, 4, first=100), submission(6, 6, 6)
        answers = await asyncio.gather(frontend.ask(good), frontend.ask(bad))
        assert_same(answers[0], expected(good))
        assert refusal(answers[1]) == (RequestRefusal.POISON, 2)


async def test_nothing_is_done_for_a_frontend_that_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        gone, stays = await manager.frontend(), await manager.frontend()
        gone.submit(submission(100))
        frame_id, batch = await manager.engine.batches.get()
        gone.submit(submission(50, 50, 50))
        await until(lambda: manager.engine.num_batches == 2)
        gone.connection.close()
        await gone.lost.wait()
        manager.engine.answer(frame_id, rows_of(batch))
        answer = stays.submit(submission(5))
        await manager.engine.answer_next()
        assert (await manager.engine.answer_next()).num_tokens == 5
        assert_same(await answer, expected(submission(5)))
        assert manager.engine.num_batches == 3


def too_few(results: Results) -> list[Any]:
    return engine_messages.encode_result({kind: Rows(rows.values[:-1]) for kind, rows in results.items()}, 0.1)


def too_narrow(results: Results) -> list[Any]:
    return engine_messages.encode_result({kind: Rows(rows.values[:, :-1]) for kind, rows in results.items()}, 0.1)


def another_kind(results: Results) -> list[Any]:
    return engine_messages.encode_result({OutputKind.LOGITS: results[OutputKind.POOLED]}, 0.1)


def ragged(results: Results) -> list[Any]:
    values = results[OutputKind.POOLED].values
    return engine_messages.encode_result(
        {OutputKind.POOLED: Rows(values, np.arange(len(values) + 1, dtype=np.int32))}, 0.1
    )


def cut_short(results: Results) -> list[Any]:
    return [b"".join(engine_messages.encode_result(results, 0.1))[:-3]]


def empty(results: Results) -> list[Any]:
    return []


async def test_rows_of_tokens_that_are_not_one_for_each_token_are_a_failed_batch(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()

        def answer(frame_id: int, batch: Batch) -> None:
            results = rows_of(batch)
            rows = results[OutputKind.TOKENS]
            if 13 in batch.token_ids and rows.offsets is not None:
                offsets = rows.offsets.copy()
                offsets[1] -= 1  # they still add up: the next sequence has one more, or there is one less in all
                results[OutputKind.TOKENS] = Rows(rows.values[: offsets[-1]], offsets)
            manager.engine.answer(frame_id, results)

        manager.engine.script(answer)
        asked = [submission(*seqlens, outputs=OutputKind.TOKENS) for seqlens in ((3, 4), (6, 6, 6))]
        answers = await asyncio.gather(*map(frontend.ask, asked))
        assert_same(answers[0], expected(asked[0]))
        assert refusal(answers[1]) == (RequestRefusal.ENGINE_FAILED, 2)


@pytest.mark.parametrize("corrupt", [too_few, too_narrow, another_kind, ragged, cut_short, empty])
async def test_a_malformed_answer_is_a_failed_batch(tmp_path: Path, corrupt: Callable[[Results], list[Any]]) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        manager.engine.script(
            lambda frame_id, batch: manager.engine.send(engine_messages.RESULT, frame_id, corrupt(rows_of(batch))),
            token_id=13,
        )
        asked = [submission(3, first=100), submission(6, 6, 6), submission(5, 5, first=200)]
        answers = await asyncio.gather(*map(frontend.ask, asked))
        assert_same(answers[0], expected(asked[0]))
        assert refusal(answers[1]) == (RequestRefusal.ENGINE_FAILED, 2)
        assert_same(answers[2], expected(asked[2]))


@pytest.mark.parametrize("kind", [engine_messages.FAILED, 0x0777])
async def test_an_answer_that_says_nothing_is_a_failed_batch(tmp_path: Path, kind: int) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        answer = frontend.submit(submission(6))
        frame_id, _ = await manager.engine.batches.get()
        manager.engine.send(kind, frame_id, [b"?"])
        assert refusal(await answer) == (RequestRefusal.ENGINE_FAILED, 0)


async def test_ragged_rows_that_do_not_add_up_are_malformed(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        for offsets in ([0, 2, 1, 5], [1, 2, 3, 5], [0, 2, 3, 4], [0, 5]):
            answer = frontend.submit(submission(1, 2, 2, outputs=OutputKind.TOKENS))
            frame_id, _ = await manager.engine.batches.get()
            rows = Rows(np.zeros((5, 2), np.float32), np.array(offsets, np.int32))
            manager.engine.answer(frame_id, {OutputKind.TOKENS: rows})
            for _ in range(2):  # its halves
                await manager.engine.answer_next()
            assert_same(await answer, expected(submission(1, 2, 2, outputs=OutputKind.TOKENS)))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (EngineErrorKind.FAILED, RequestRefusal.ENGINE_FAILED),
        (EngineErrorKind.NON_FINITE, RequestRefusal.NON_FINITE),
        (EngineErrorKind.OUT_OF_MEMORY, RequestRefusal.ENGINE_FAILED),
    ],
)
async def test_a_failed_batch_is_bisected(tmp_path: Path, kind: EngineErrorKind, reason: RequestRefusal) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        manager.engine.script(lambda frame_id, batch: manager.engine.fail(frame_id, kind), token_id=13)
        good, bad = submission(6, 6, first=50), submission(6, 6, 6)
        answers = await asyncio.gather(frontend.ask(good), frontend.ask(bad))
        assert_same(answers[0], expected(good))
        assert refusal(answers[1]) == (reason, 2)
        counts = manager.child.metrics.drain()["counts"]
        assert ["embedline_refused_total", reason.name.lower(), 1] in counts


async def test_a_fatal_failure_and_the_lost_connection_after_it(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        answer = frontend.submit(submission(6))
        frame_id, _ = await manager.engine.batches.get()
        manager.engine.fail(frame_id, EngineErrorKind.FATAL)
        manager.engine.is_automatic = True
        manager.engine.cut()
        assert_same(await answer, expected(submission(6)))


async def test_answers_to_nothing_and_unknown_frames_are_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        await until(lambda: bool(manager.engine.connections))
        manager.engine.answer(77, {OutputKind.POOLED: Rows(np.zeros((1, 4), np.float32))})
        manager.engine.send(0x7777, 0, [b"?"])
        manager.engine.is_automatic = True
        assert_same(await frontend.ask(submission(6)), expected(submission(6)))


@pytest.mark.parametrize("fault", ["no sequences", "empty sequence", "ids missing", "unknown model", "id in use"])
async def test_a_frontend_that_breaks_the_rules_loses_its_own_connection_only(tmp_path: Path, fault: str) -> None:
    async with running(tmp_path) as manager:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        good, bad = await manager.frontend(), await manager.frontend()
        bad.submit(submission(90))
        ids = ids_of(6).tobytes()
        broken = {
            "no sequences": Submission(0, INTERACTIVE, OutputKind.POOLED, 1e9, (), b""),
            "empty sequence": Submission(0, INTERACTIVE, OutputKind.POOLED, 1e9, (6, 0), ids),
            "ids missing": Submission(0, INTERACTIVE, OutputKind.POOLED, 1e9, (6, 6), ids),
            "unknown model": Submission(1, INTERACTIVE, OutputKind.POOLED, 1e9, (6,), ids),
            "id in use": submission(6),
        }[fault]
        frame_id = 1 if fault == "id in use" else 2
        bad.connection.send(messages.SUBMIT, frame_id, messages.encode_submission(broken))
        await bad.lost.wait()
        manager.engine.is_automatic = True
        manager.engine.cut()
        assert_same(await good.ask(submission(6)), expected(submission(6)))


async def test_two_engines_share_the_work_and_take_over_from_each_other(tmp_path: Path) -> None:
    async with running(tmp_path, num_engines=2) as manager:
        first, second = manager.engines
        frontend = await manager.frontend()
        await until(lambda: manager.page.engines_ready[1, 0] == 2)
        answers = [frontend.submit(submission(100, first=at)) for at in (1, 1000)]
        await until(lambda: [engine.num_batches for engine in manager.engines] == [1, 1])
        second.is_automatic = True
        first.close()
        await until(lambda: manager.page.engines_ready[1, 0] == 1)
        await second.answer_next()
        assert_same(await answers[0], expected(submission(100, first=1)))
        assert_same(await answers[1], expected(submission(100, first=1000)))


@pytest.mark.holds("A sick engine costs no answers")
@pytest.mark.parametrize("kind", [EngineErrorKind.FAILED, EngineErrorKind.NON_FINITE])
async def test_a_sick_engine_costs_no_answer_and_is_told_to_exit(tmp_path: Path, kind: EngineErrorKind) -> None:
    async with running(tmp_path, num_engines=2) as manager:
        sick, well = manager.engines
        sick.canary, well.is_automatic = kind, True
        script = sick.script(lambda frame_id, _: sick.fail(frame_id, kind))
        frontend = await manager.frontend()
        await until(lambda: manager.page.engines_ready[1, 0] == 2)
        while not sick.was_told_to_exit.is_set():
            asked = [submission(3, 4, first=at) for at in range(1, 9)]
            for answer, one in zip(await asyncio.gather(*map(frontend.ask, asked)), asked, strict=True):
                assert_same(answer, expected(one))
        await until(lambda: manager.page.engines_ready[1, 0] == 1)
        assert_same(await frontend.ask(submission(5)), expected(submission(5)))
        assert sick.num_canaries == 1
        counts = {tuple(labels): value for *labels, value in manager.child.metrics.drain()["counts"]}
        assert counts["embedline_canaries_total", "tiny", "failed"] == 1
        assert counts["embedline_engine_losses_total", "tiny", "canary"] == 1
        assert counts["embedline_retried_sequences_total", "tiny", "elsewhere"] >= 3

        sick.canary = None
        script.cancel()
        sick.is_automatic = True
        sick.cut()  # its process ends, and the next one is well
        await until(lambda: manager.page.engines_ready[1, 0] == 2)


async def test_a_canary_that_passes_leaves_the_engine_where_it_is(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        script = manager.engine.script(lambda frame_id, _: manager.engine.fail(frame_id, EngineErrorKind.FAILED))
        for _ in range(3):
            assert refusal(await frontend.ask(submission(3))) == (RequestRefusal.ENGINE_FAILED, 0)
        await until(lambda: manager.engine.num_canaries == 1)
        script.cancel()
        manager.engine.is_automatic = True
        assert_same(await frontend.ask(submission(5)), expected(submission(5)))
        levels = {tuple(labels): value for *labels, value in manager.child.metrics.drain()["levels"]}
        assert levels["embedline_engines_suspected", "batch manager 1"] == 0
        assert not manager.engine.was_told_to_exit.is_set()


async def test_an_input_that_took_engines_down_is_refused_without_being_computed(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        bad = submission(6, 6, first=8)
        manager.engine.script(lambda frame_id, batch: manager.engine.cut(), token_id=18)
        assert refusal(await frontend.ask(bad)) == (RequestRefusal.POISON, 1)
        num_batches = manager.engine.num_batches
        for asked, index in ((bad, 1), (submission(6, first=14), 0)):
            assert refusal(await frontend.ask(asked)) == (RequestRefusal.POISON, index)
        assert manager.engine.num_batches == num_batches
        assert_same(await frontend.ask(submission(6, first=8)), expected(submission(6, first=8)))
        counts = manager.child.metrics.drain()["counts"]
        assert ["embedline_quarantined_total", "tiny", 2] in counts
