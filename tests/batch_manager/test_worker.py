"""The batch manager's process: real sockets and the real clock around the scheduler."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from batch_manager import messages
from batch_manager.messages import Answer, Refusal, RequestRefused, Submission
from engine import messages as engine_messages
from engine.types import Batch, EngineErrorKind, EngineLimits, OutputKind, Results, Rows
from tests.batch_manager.peers import LIMITS, assert_same, expected, ids_of, rows_of, running, submission
from wire.vocabulary import RequestClass

Run = Callable[[Coroutine[Any, Any, None]], None]
INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on either event loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run_it(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test)

    return run_it


def refusal(outcome: Answer | RequestRefused) -> tuple[Refusal, int]:
    """Why, and which sequence."""
    assert isinstance(outcome, RequestRefused)
    return outcome.reason, outcome.index


async def until(condition: Callable[[], bool]) -> None:
    """Let everything on the loop go on until this holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for is in shared memory, or in a peer
        await asyncio.sleep(0)


def test_rows_come_back_to_whom_they_belong(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            house.engine.is_automatic = True
            frontends = [await house.frontend(), await house.frontend()]
            asked = [submission(*seqlens, first=100 * at) for at, seqlens in enumerate([(5,), (3, 4), (1,), (9, 2, 2)])]
            answers = await asyncio.gather(*(frontends[at % 2].ask(one) for at, one in enumerate(asked)))
            for answer, one in zip(answers, asked, strict=True):
                assert_same(answer, expected(one))

    run(test())


def test_requests_that_come_together_share_a_batch(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            house.engine.is_automatic = True
            frontend = await house.frontend()
            await frontend.ask(submission(1))
            await asyncio.gather(*(frontend.ask(submission(2, first=at)) for at in range(10)))
            assert house.engine.num_batches == 2

    run(test())


@pytest.mark.parametrize(
    "outputs", [OutputKind.POOLED, OutputKind.TOKENS, OutputKind.POOLED | OutputKind.TOKENS], ids=str
)
def test_a_request_larger_than_a_batch_is_split_and_rejoined(run: Run, tmp_path: Path, outputs: OutputKind) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            house.engine.is_automatic = True
            frontend = await house.frontend()
            large = submission(*range(1, 60), outputs=outputs)
            small = submission(7, 8, first=5000, outputs=outputs)
            answers = await asyncio.gather(frontend.ask(large), frontend.ask(small))
            assert house.engine.num_batches > 10
            assert_same(answers[0], expected(large))
            assert_same(answers[1], expected(small))

    run(test())


def test_parts_may_come_in_any_order(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            house.engine.limits = EngineLimits(max_num_tokens=100, max_num_seqs=16, max_seqlen=100, streams=2, depth=2)
            frontend = await house.frontend()
            one = submission(60, 60, outputs=OutputKind.POOLED | OutputKind.TOKENS)
            answer = frontend.submit(one)
            (first, first_batch), (second, second_batch) = [await house.engine.batches.get() for _ in range(2)]
            house.engine.answer(second, rows_of(second_batch), 0.25)
            house.engine.answer(first, rows_of(first_batch), 0.5)
            result = await answer
            assert_same(result, expected(one))
            assert isinstance(result, Answer)
            assert result.compute_seconds == 0.75
            assert 0 <= result.queue_seconds < 20

    run(test())


def test_token_types_travel_and_are_zero_where_none_were_given(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            house.engine.is_automatic = True
            frontend = await house.frontend()
            ids, types = ids_of(40, 50, 30), (ids_of(40, 50, 30) % 3).astype(np.int32)
            given = Submission(
                0, INTERACTIVE, OutputKind.POOLED, float("inf"), (40, 50, 30), ids.tobytes(), types.tobytes()
            )
            answers = await asyncio.gather(frontend.ask(given), frontend.ask(submission(4)))
            assert_same(answers[0], expected(given))
            assert_same(answers[1], expected(submission(4)))

    run(test())


def test_an_engine_that_is_lost_and_comes_back_costs_a_retry(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()
            computing, staged = submission(60), submission(70, 20, 30, first=500)
            answers = [frontend.submit(computing), frontend.submit(staged)]
            await house.engine.batches.get()
            await until(lambda: house.engine.num_batches == 2)
            house.engine.is_automatic = True
            house.engine.cut()
            for answer, one in zip(answers, [computing, staged], strict=True):
                assert_same(await answer, expected(one))
            counts = house.child.metrics.drain()["counts"]
            assert ["embedline_batch_failures_total", "tiny", "lost", 2] in counts

    run(test())


def test_a_sequence_that_takes_the_engine_down_twice_is_poison(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()

            def answer(frame_id: int, batch: Batch) -> None:
                if 13 in batch.token_ids:
                    house.engine.cut()
                else:
                    house.engine.answer(frame_id, rows_of(batch))

            script = asyncio.create_task(house.engine.answer_all(answer))
            good, bad = submission(3, 4, first=100), submission(6, 6, 6)
            answers = await asyncio.gather(frontend.ask(good), frontend.ask(bad))
            assert_same(answers[0], expected(good))
            assert refusal(answers[1]) == (Refusal.POISON, 2)
            script.cancel()

    run(test())


def test_nothing_is_done_for_a_frontend_that_is_gone(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            gone, stays = await house.frontend(), await house.frontend()
            gone.submit(submission(100))
            gone.submit(submission(50, 50, 50))
            frame_id, batch = await house.engine.batches.get()
            await until(lambda: house.engine.num_batches == 2)
            gone.connection.close()
            await gone.lost.wait()
            house.engine.answer(frame_id, rows_of(batch))
            answer = stays.submit(submission(5))
            frame_id, batch = await house.engine.batches.get()
            house.engine.answer(frame_id, rows_of(batch))
            frame_id, batch = await house.engine.batches.get()
            assert batch.num_tokens == 5
            house.engine.answer(frame_id, rows_of(batch))
            assert_same(await answer, expected(submission(5)))
            assert house.engine.num_batches == 3

    run(test())


def test_a_cancelled_request_is_not_computed_and_not_answered(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()
            computing = frontend.submit(submission(90))
            frame_id, batch = await house.engine.batches.get()
            cancelled = frontend.submit(submission(50, 30))
            kept = frontend.submit(submission(5))
            await until(lambda: house.page.queued_tokens[1, 0, INTERACTIVE] == 175)
            frontend.cancel(2)
            await until(lambda: house.page.queued_tokens[1, 0, INTERACTIVE] == 95)
            house.engine.is_automatic = True
            house.engine.answer(frame_id, rows_of(batch))
            assert_same(await computing, expected(submission(90)))
            assert_same(await kept, expected(submission(5)))
            assert not cancelled.done()
            frontend.cancel(2)  # once more, and for one that is answered
            frontend.cancel(1)
            assert_same(await frontend.ask(submission(6)), expected(submission(6)))

    run(test())


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


@pytest.mark.parametrize("corrupt", [too_few, too_narrow, another_kind, ragged, cut_short, empty])
def test_a_malformed_answer_is_a_failed_batch(
    run: Run, tmp_path: Path, corrupt: Callable[[Results], list[Any]]
) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()

            def answer(frame_id: int, batch: Batch) -> None:
                if 13 in batch.token_ids:
                    house.engine.send(engine_messages.RESULT, frame_id, corrupt(rows_of(batch)))
                else:
                    house.engine.answer(frame_id, rows_of(batch))

            script = asyncio.create_task(house.engine.answer_all(answer))
            asked = [submission(3, first=100), submission(6, 6, 6), submission(5, 5, first=200)]
            answers = await asyncio.gather(*map(frontend.ask, asked))
            assert_same(answers[0], expected(asked[0]))
            assert refusal(answers[1]) == (Refusal.ENGINE_FAILED, 2)
            assert_same(answers[2], expected(asked[2]))
            script.cancel()

    run(test())


def test_ragged_rows_that_do_not_add_up_are_malformed(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()
            for offsets in ([0, 2, 1, 5], [1, 2, 3, 5], [0, 2, 3, 4], [0, 5]):
                answer = frontend.submit(submission(1, 2, 2, outputs=OutputKind.TOKENS))
                frame_id, _ = await house.engine.batches.get()
                rows = Rows(np.zeros((5, 2), np.float32), np.array(offsets, np.int32))
                house.engine.answer(frame_id, {OutputKind.TOKENS: rows})
                for _ in range(2):  # its halves
                    frame_id, batch = await house.engine.batches.get()
                    house.engine.answer(frame_id, rows_of(batch))
                assert_same(await answer, expected(submission(1, 2, 2, outputs=OutputKind.TOKENS)))

    run(test())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (EngineErrorKind.FAILED, Refusal.ENGINE_FAILED),
        (EngineErrorKind.NON_FINITE, Refusal.NON_FINITE),
        (EngineErrorKind.OUT_OF_MEMORY, Refusal.ENGINE_FAILED),
    ],
)
def test_a_failed_batch_is_bisected(run: Run, tmp_path: Path, kind: EngineErrorKind, reason: Refusal) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()

            def answer(frame_id: int, batch: Batch) -> None:
                if 13 in batch.token_ids:
                    house.engine.fail(frame_id, kind)
                else:
                    house.engine.answer(frame_id, rows_of(batch))

            script = asyncio.create_task(house.engine.answer_all(answer))
            good, bad = submission(6, 6, first=50), submission(6, 6, 6)
            answers = await asyncio.gather(frontend.ask(good), frontend.ask(bad))
            assert_same(answers[0], expected(good))
            assert refusal(answers[1]) == (reason, 2)
            counts = house.child.metrics.drain()["counts"]
            assert ["embedline_refused_total", reason.name.lower(), 1] in counts
            script.cancel()

    run(test())


def test_a_fatal_failure_and_the_lost_connection_after_it(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()
            answer = frontend.submit(submission(6))
            frame_id, _ = await house.engine.batches.get()
            house.engine.fail(frame_id, EngineErrorKind.FATAL)
            house.engine.is_automatic = True
            house.engine.cut()
            assert_same(await answer, expected(submission(6)))

    run(test())


def test_answers_to_nothing_and_unknown_frames_are_passed_over(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()
            await until(lambda: bool(house.engine.connections))
            house.engine.answer(77, {OutputKind.POOLED: Rows(np.zeros((1, 4), np.float32))})
            house.engine.send(0x7777, 0, [b"?"])
            house.engine.is_automatic = True
            assert_same(await frontend.ask(submission(6)), expected(submission(6)))

    run(test())


def test_a_deadline_is_kept_by_the_clock(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, has_engines=False) as house:
            frontend = await house.frontend()
            asked_at = time.monotonic()
            later = frontend.submit(submission(5, deadline=asked_at + 0.2))
            sooner = await frontend.ask(submission(5, deadline=asked_at + 0.05))
            assert refusal(sooner) == (Refusal.DEADLINE, -1)
            assert not later.done()
            assert refusal(await later) == (Refusal.DEADLINE, -1)
            assert time.monotonic() - asked_at >= 0.2

    run(test())


def test_no_engine_for_longer_than_the_grace(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, has_engines=False, engine_start_grace=0.05, retry_after=3.0) as house:
            frontend = await house.frontend()
            refused = await frontend.ask(submission(5))
            assert refusal(refused) == (Refusal.NO_ENGINE, -1)
            assert isinstance(refused, RequestRefused)
            assert refused.retry_after == 3.0

    run(test())


def test_stopping_finishes_what_an_engine_can_do_and_refuses_new_work(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            frontend = await house.frontend()
            held = frontend.submit(submission(60, 60))
            frame_id, batch = await house.engine.batches.get()
            house.child.stopping.set()
            assert refusal(await frontend.ask(submission(5))) == (Refusal.STOPPING, -1)
            house.engine.is_automatic = True
            house.engine.answer(frame_id, rows_of(batch))
            while not held.done():
                frame_id, batch = await house.engine.batches.get()
                house.engine.answer(frame_id, rows_of(batch))
                await asyncio.wait([held], timeout=0.01)
            assert_same(held.result(), expected(submission(60, 60)))
            await frontend.lost.wait()

    run(test())


def test_stopping_without_an_engine_refuses_what_waits(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, has_engines=False) as house:
            frontend = await house.frontend()
            held = frontend.submit(submission(60, 60))
            await until(lambda: house.page.queued_tokens[1, 0, INTERACTIVE] == 120)
            house.child.stopping.set()
            assert refusal(await held) == (Refusal.STOPPING, -1)

    run(test())


def test_the_page_and_the_metrics_tell_what_is_so(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            page, frontend = house.page, await house.frontend()
            began = time.monotonic()
            answers = [frontend.submit(submission(90)), frontend.submit(submission(30, request_class=BULK))]
            frame_id, batch = await house.engine.batches.get()
            await until(lambda: page.queued_tokens[1, 0].tolist() == [90, 30])
            assert page.engines_ready[1, 0] == 1
            assert began <= page.oldest_since[1, 0, BULK] <= time.monotonic()
            assert page.oldest_since[1, 0, INTERACTIVE] == 0
            assert (page.last_batch_at[1, 0], page.tokens_per_second[1, 0]) == (0, 0)
            house.engine.is_automatic = True
            house.engine.answer(frame_id, rows_of(batch), 0.009)
            await asyncio.gather(*answers)
            await until(lambda: page.queued_tokens[1, 0].tolist() == [0, 0])
            assert page.last_batch_at[1, 0] >= began
            assert page.tokens_per_second[1, 0] > 0
            assert page.oldest_since[1].tolist() == [[0, 0]]
            assert not page.queued_tokens[0].any()
            house.engine.cut()
            await until(lambda: page.engines_ready[1, 0] == 0)
            metrics = house.child.metrics.drain()
            assert ["embedline_batches_total", "tiny", 2] in metrics["counts"]
            assert ["embedline_batch_tokens_total", "tiny", 120] in metrics["counts"]
            assert ["embedline_batch_sequences_total", "tiny", 2] in metrics["counts"]
            names = {tuple(entry[:-1]) for entry in metrics["durations"]}
            assert names == {
                ("embedline_queue_duration_seconds", "tiny", "interactive"),
                ("embedline_queue_duration_seconds", "tiny", "bulk"),
                ("embedline_engine_duration_seconds", "tiny"),
            }

    run(test())


@pytest.mark.parametrize("fault", ["no sequences", "empty sequence", "ids missing", "unknown model", "id in use"])
def test_a_frontend_that_breaks_the_rules_loses_its_own_connection_only(run: Run, tmp_path: Path, fault: str) -> None:
    async def test() -> None:
        async with running(tmp_path) as house:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            good, bad = await house.frontend(), await house.frontend()
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
            house.engine.is_automatic = True
            house.engine.cut()
            assert_same(await good.ask(submission(6)), expected(submission(6)))

    run(test())


def test_two_engines_share_the_work_and_take_over_from_each_other(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, num_engines=2) as house:
            first, second = house.engines
            frontend = await house.frontend()
            await until(lambda: house.page.engines_ready[1, 0] == 2)
            answers = [frontend.submit(submission(100, first=at)) for at in (1, 1000)]
            await until(lambda: [engine.num_batches for engine in house.engines] == [1, 1])
            second.is_automatic = True
            first.close()
            await until(lambda: house.page.engines_ready[1, 0] == 1)
            frame_id, batch = await second.batches.get()
            second.answer(frame_id, rows_of(batch))
            assert_same(await answers[0], expected(submission(100, first=1)))
            assert_same(await answers[1], expected(submission(100, first=1000)))

    run(test())


def test_the_engine_may_come_late(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, has_engines=False) as house:
            frontend = await house.frontend()
            waiting, too_long = frontend.submit(submission(60)), frontend.submit(submission(5, LIMITS.max_seqlen + 1))
            await until(lambda: house.page.queued_tokens[1, 0, INTERACTIVE] == 166)
            house.engine.is_automatic = True
            await house.engine.open()
            assert_same(await waiting, expected(submission(60)))
            assert refusal(await too_long) == (Refusal.TOO_LONG, 1)

    run(test())
