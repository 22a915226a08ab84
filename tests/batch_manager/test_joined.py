"""Requests that ask for the same while it is computed: one computation, an answer for each who waits."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_manager import worker as manager_module
from batch_manager.messages import (
    RequestRefusal,
    RequestRefused,
    RequestResults,
    Submission,
    encode_submission,
    work_of,
)
from engine.types import OutputKind
from tests.batch_manager.peers import (
    ManagerRole,
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

BULK = RequestClass.BULK
ONE = submission(3, 4)


def has_joined(outcome: RequestResults | RequestRefused) -> bool:
    assert isinstance(outcome, RequestResults)
    return outcome.has_joined


def num_joined(manager: ManagerRole) -> int:
    counts = manager.child.metrics.drain()["counts"]
    return sum(count for name, *_, count in counts if name == "embedline_joined_requests_total")


async def queued(manager: ManagerRole, num_tokens: int) -> None:
    await until(lambda: int(manager.page.queued_tokens[1, 0].sum()) == num_tokens)


@pytest.mark.holds("Identical requests")
@pytest.mark.parametrize("outputs", [OutputKind.POOLED, OutputKind.POOLED | OutputKind.TOKENS], ids=str)
async def test_the_same_from_two_frontends_is_computed_once(tmp_path: Path, outputs: OutputKind) -> None:
    async with running(tmp_path) as manager:
        first, second = await manager.frontend(), await manager.frontend()
        one = submission(3, 4, outputs=outputs)
        answers = [first.submit(one)]
        frame_id, batch = await manager.engine.batches.get()  # it is being computed already
        answers += [second.submit(one), second.submit(one)]
        other = second.submit(submission(7, first=50))
        await queued(manager, 14)
        manager.engine.answer(frame_id, rows_of(batch))
        for answer in answers:
            assert_same(await answer, expected(one))
        assert [has_joined(await answer) for answer in answers] == [False, True, True]
        assert (await manager.engine.answer_next()).num_tokens == 7
        assert not has_joined(await other)
        assert num_joined(manager) == 2
        manager.engine.is_automatic = True
        assert not has_joined(await first.ask(one)), "what has been answered is computed anew"


async def test_what_is_long_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "MAX_JOINED_BYTES", 40)
    async with running(tmp_path) as manager:
        manager.engine.is_automatic = True
        frontend = await manager.frontend()
        for one in (ONE, submission(1)):  # of 60 bytes, and of 32
            answers = await asyncio.gather(frontend.ask(one), frontend.ask(one))
            assert has_joined(answers[1]) == (one is not ONE)


@pytest.mark.holds("Identical requests", "Cancellation")
@pytest.mark.parametrize("leaves_by", ["cancelling", "dying"])
async def test_it_is_computed_until_the_last_has_left(tmp_path: Path, leaves_by: str) -> None:
    async with running(tmp_path) as manager:
        first, second = await manager.frontend(), await manager.frontend()
        busy = second.submit(submission(90, first=100))
        frame_id, batch = await manager.engine.batches.get()
        first.submit(ONE)
        await queued(manager, 97)
        joined = second.submit(ONE)
        await until(lambda: num_joined(manager) == 1)
        if leaves_by == "dying":
            first.connection.close()
            await first.lost.wait()
        else:
            first.cancel(1)
        manager.engine.answer(frame_id, rows_of(batch))
        await busy
        await manager.engine.answer_next()
        assert_same(await joined, expected(ONE))

        first = await manager.frontend()
        busy = first.submit(submission(90, first=100))
        await manager.engine.batches.get()
        for frontend in (first, second):
            frontend.submit(ONE)
        await queued(manager, 97)
        await until(lambda: num_joined(manager) == 1)
        first.cancel(2)
        second.cancel(3)
        await queued(manager, 90)  # nobody waits for it any more
        first.cancel(1)


@pytest.mark.holds("Identical requests", "Deadlines")
async def test_each_has_its_own_deadline(tmp_path: Path) -> None:
    """The request lives as long as the last of them; each frontend stops waiting at its own time."""
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        late = replace(ONE, deadline=time.monotonic() - 1)
        patient = replace(ONE, deadline=time.monotonic() + 60)
        answers = [frontend.submit(one) for one in (late, patient, late)]  # in one tick
        await manager.engine.answer_next()
        for answer in answers:
            assert_same(await answer, expected(ONE))
        outcomes = await asyncio.gather(frontend.ask(late), frontend.ask(late))
        assert [refusal(outcome) for outcome in outcomes] == [(RequestRefusal.DEADLINE, -1)] * 2


@pytest.mark.holds("Identical requests", "A bad input fails alone")
async def test_poison_fails_all_who_asked_for_it_and_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontends = [await manager.frontend(), await manager.frontend()]
        manager.engine.script(lambda frame_id, batch: manager.engine.cut(), token_id=13)
        good, bad = submission(3, 4, first=100), submission(6, 6, 6)
        asked = [frontend.submit(one) for one in (bad, good) for frontend in frontends]
        outcomes = await asyncio.gather(*asked)
        assert [refusal(outcome) for outcome in outcomes[:2]] == [(RequestRefusal.POISON, 2)] * 2
        for outcome in outcomes[2:]:
            assert_same(outcome, expected(good))


async def test_the_time_of_one_who_came_later_is_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        frontend = await manager.frontend()
        busy = frontend.submit(submission(90, first=100))
        frame_id, batch = await manager.engine.batches.get()
        first = frontend.submit(ONE)
        await queued(manager, 97)
        second = frontend.submit(ONE)
        await until(lambda: num_joined(manager) == 1)
        manager.engine.answer(frame_id, rows_of(batch))
        await busy
        await manager.engine.answer_next(0.25)
        answers = [await first, await second]
        assert isinstance(answers[0], RequestResults)
        assert isinstance(answers[1], RequestResults)
        assert answers[1].queue_seconds < answers[0].queue_seconds
        assert answers[0].compute_seconds == answers[1].compute_seconds == 0.25


def test_submissions_are_the_same_work_whatever_their_deadlines() -> None:
    """Every other field is part of it, as a field that is left out would mix up answers."""

    def work(one: Submission) -> bytes:
        return work_of(memoryview(b"".join(bytes(part) for part in encode_submission(one))))

    others: list[dict[str, Any]] = [
        {"model": 1},
        {"request_class": BULK},
        {"outputs": OutputKind.SPARSE},
        {"seqlens": (7,)},
        {"token_ids": ids_of(7, first=9).tobytes()},
        {"parts": {Part.MARKS: b"\x08" + bytes(6)}},
        {"parts": {Part.ADAPTERS: (2).to_bytes(4, "little")}},
        {"key": 3},
        {"weight": 2.0},
    ]
    assert {name for other in others for name in other} == set(Submission.__slots__) - {"deadline"}
    assert work(replace(ONE, deadline=7.0)) == work(ONE)
    assert all(work(replace(ONE, **other)) != work(ONE) for other in others)
