"""A frontend's side: what is handed over is kept until its answer is in, whatever becomes of the batch manager."""

import asyncio
from pathlib import Path

import pytest

from batch_manager import messages
from batch_manager.messages import RequestRefusal, RequestRefused, RequestResults
from engine.types import OutputKind
from tests.batch_manager.client.scripted_managers import connected
from tests.batch_manager.peers import submission
from wire.vocabulary import RequestClass


async def reason_of(asked: "asyncio.Future[RequestResults]") -> RequestRefusal:
    with pytest.raises(RequestRefused) as refused:
        await asked
    return refused.value.reason


def value(answer: RequestResults) -> float:
    return float(answer.results[OutputKind.POOLED].values[0, 0])


async def test_answers_find_their_requests_in_any_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, (manager,), _):
        first = asyncio.ensure_future(client.submit(submission(3)))
        second = asyncio.ensure_future(client.submit(submission(5)))
        ids = [await manager.submitted.get() for _ in range(2)]
        assert [one.seqlens for _, one in ids] == [(3,), (5,)]
        manager.answer(ids[1][0], 2.0)
        manager.answer(ids[0][0], 1.0)
        assert [value(await first), value(await second)] == [1.0, 2.0]


async def test_what_a_dead_manager_held_is_submitted_again(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, (manager,), _):
        asked = asyncio.ensure_future(client.submit(submission(3, 4)))
        request_id, before = await manager.submitted.get()
        await manager.die()
        await manager.start()
        again, after = await manager.submitted.get()
        assert again == request_id
        assert (after.seqlens, bytes(after.token_ids)) == (before.seqlens, bytes(before.token_ids))
        manager.answer(again, 7.0)
        assert value(await asked) == 7.0


@pytest.mark.holds("When a process dies")
async def test_a_request_that_three_managers_died_with_is_given_up(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, (manager,), _):
        asked = asyncio.ensure_future(client.submit(submission(3)))
        for _ in range(3):
            await manager.submitted.get()
            await manager.die()
            await manager.start()
        assert await reason_of(asked) is RequestRefusal.NO_ENGINE
        assert manager.submitted.empty()


@pytest.mark.holds("Deadlines")
async def test_whoever_stops_waiting_cancels(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, (manager,), _):
        asked = asyncio.ensure_future(client.submit(submission(3)))
        request_id, _ = await manager.submitted.get()
        asked.cancel()
        assert await manager.cancelled.get() == request_id
        manager.answer(request_id, 1.0)  # too late, and harmless
        following = asyncio.ensure_future(client.submit(submission(3)))
        manager.answer((await manager.submitted.get())[0], 2.0)
        assert value(await following) == 2.0


@pytest.mark.parametrize(
    ("queued", "rates", "ready"),
    [([10, 0], [0, 0], [0, 0]), ([100, 200], [10, 100], [0, 0]), ([0, 1000], [0, 0], [0, 1])],
    ids=["fewest tokens", "shortest wait", "has an engine"],
)
async def test_the_manager_that_is_asked(tmp_path: Path, queued: list[int], rates: list[int], ready: list[int]) -> None:
    async with connected(tmp_path, num_managers=2) as (client, (first, second), page):
        page.queued_tokens[:, 0, RequestClass.BULK] = queued
        page.tokens_per_second[:, 0] = rates
        page.engines_ready[:, 0] = ready
        asked = asyncio.ensure_future(client.submit(submission(3)))
        second.answer((await second.submitted.get())[0], 1.0)
        await asked
        assert first.submitted.empty()


async def test_what_one_manager_has_no_engine_for_goes_to_one_that_has(tmp_path: Path) -> None:
    async with connected(tmp_path, num_managers=2) as (client, (first, second), page):
        asked = asyncio.ensure_future(client.submit(submission(3)))
        request_id, _ = await first.submitted.get()
        page.engines_ready[1, 0] = 1
        first.refuse(request_id, RequestRefusal.NO_ENGINE)
        second.answer((await second.submitted.get())[0], 1.0)
        assert value(await asked) == 1.0


async def test_want_of_an_engine_is_told_after_a_few_tries_or_where_nobody_has_one(tmp_path: Path) -> None:
    async with connected(tmp_path, num_managers=2) as (client, (first, second), page):
        for has_engine, num_tries in ((0, 1), (1, 3)):
            page.engines_ready[0, 0] = has_engine
            asked = asyncio.ensure_future(client.submit(submission(3)))
            for _ in range(num_tries):
                first.refuse((await first.submitted.get())[0], RequestRefusal.NO_ENGINE)
            assert await reason_of(asked) is RequestRefusal.NO_ENGINE
            assert first.submitted.empty()
            assert second.submitted.empty()


@pytest.mark.parametrize("reason", [RequestRefusal.ENGINE_FAILED, RequestRefusal.NON_FINITE])
async def test_what_failed_on_the_only_engine_of_a_manager_is_tried_once_elsewhere(
    tmp_path: Path, reason: RequestRefusal
) -> None:
    async with connected(tmp_path, num_managers=2) as (client, (first, second), page):
        page.engines_ready[:, 0] = 1
        for is_well in (True, False):
            asked = asyncio.ensure_future(client.submit(submission(3)))
            first.refuse((await first.submitted.get())[0], reason)
            request_id, _ = await second.submitted.get()
            if is_well:
                second.answer(request_id, 1.0)
                assert value(await asked) == 1.0
                assert await first.refuted.get() == 0  # the first learns that its engine is to blame
                continue
            second.refuse(request_id, reason)
            assert await reason_of(asked) is reason
            assert first.submitted.empty()
            asked = asyncio.ensure_future(client.submit(submission(3)))
            first.answer((await first.submitted.get())[0], 2.0)
            assert value(await asked) == 2.0
        assert first.refuted.empty(), "what failed everywhere refutes nobody"


async def test_one_failure_refutes_an_engine_once_however_many_asked_for_it(tmp_path: Path) -> None:
    async with connected(tmp_path, num_managers=2) as (client, (first, second), page):
        page.engines_ready[:, 0] = 1
        asked = [asyncio.ensure_future(client.submit(submission(3))) for _ in range(2)]
        for _ in asked:
            first.refuse((await first.submitted.get())[0], RequestRefusal.ENGINE_FAILED)
        for has_joined in (False, True):
            second.answer((await second.submitted.get())[0], 1.0, has_joined=has_joined)
        assert [value(await one) for one in asked] == [1.0, 1.0]
        assert await first.refuted.get() == 0
        last = asyncio.ensure_future(client.submit(submission(4)))
        first.answer((await first.submitted.get())[0], 2.0)  # so all that was sent before has come
        assert value(await last) == 2.0
        assert first.refuted.empty()


@pytest.mark.parametrize(
    ("reason", "ready"),
    [(RequestRefusal.ENGINE_FAILED, [2, 1]), (RequestRefusal.ENGINE_FAILED, [1, 0]), (RequestRefusal.POISON, [1, 1])],
)
async def test_what_two_engines_failed_on_or_kills_is_not_tried_elsewhere(
    tmp_path: Path, reason: RequestRefusal, ready: list[int]
) -> None:
    async with connected(tmp_path, num_managers=2) as (client, (first, second), page):
        page.engines_ready[:, 0] = ready
        asked = asyncio.ensure_future(client.submit(submission(3)))
        first.refuse((await first.submitted.get())[0], reason)
        assert await reason_of(asked) is reason
        assert second.submitted.empty()


async def test_what_a_dead_manager_held_goes_to_another_at_once(tmp_path: Path) -> None:
    async with connected(tmp_path, num_managers=2) as (client, (first, second), page):
        page.engines_ready[:, 0] = 1
        asked = asyncio.ensure_future(client.submit(submission(3)))
        await first.submitted.get()
        page.queued_tokens[1, 0, RequestClass.BULK] = 1000
        await first.die()  # and stays dead
        second.answer((await second.submitted.get())[0], 1.0)
        assert value(await asked) == 1.0


@pytest.mark.parametrize("kind", [messages.ANSWER, messages.REFUSED, 0x0777])
async def test_a_malformed_answer_ends_its_request(tmp_path: Path, kind: int) -> None:
    async with connected(tmp_path) as (client, (manager,), _):
        asked = asyncio.ensure_future(client.submit(submission(3)))
        manager.send(kind, (await manager.submitted.get())[0], [b"?"])
        assert await reason_of(asked) is RequestRefusal.ENGINE_FAILED


async def test_closing_refuses_what_is_held(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, (manager,), _):
        asked = asyncio.ensure_future(client.submit(submission(3)))
        await manager.submitted.get()
        client.close()
        assert await reason_of(asked) is RequestRefusal.STOPPING
