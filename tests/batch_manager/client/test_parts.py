"""A large request is computed by several batch managers, and its answer is the same as one's."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from batch_manager import messages
from batch_manager.client import even_shares, join, split
from batch_manager.messages import RequestRefusal, RequestRefused, RequestResults, Submission
from engine.types import OutputKind
from tests.batch_manager.client.scripted_managers import Manager, connected
from tests.batch_manager.peers import assert_same, expected, submission, until
from wire.parts import Part

LARGE = submission(*[512] * 31, 100, outputs=OutputKind.POOLED | OutputKind.TOKENS)


def answer(manager: Manager, request_id: int, part: Submission) -> None:
    manager.send(messages.ANSWER, request_id, messages.encode_answer(RequestResults(expected(part), 1.0, 2.0)))


@pytest.mark.parametrize(
    ("waits", "rates", "shares"),
    [
        ([0, 0], [10, 10], [500, 500]),
        ([0, 0], [30, 10], [750, 250]),
        ([20, 0], [10, 10], [400, 600]),
        ([500, 0], [10, 10], [0, 1000]),
        ([0, 500, 10], [10, 10, 10], [550, 0, 450]),
    ],
)
def test_all_are_done_at_the_same_time(waits: list[float], rates: list[float], shares: list[float]) -> None:
    assert even_shares(waits, rates, 1000) == pytest.approx(shares)


@pytest.mark.holds("Rows keep the order of the request")
def test_parts_joined_are_the_whole() -> None:
    chance = np.random.default_rng(7)
    for _ in range(200):
        seqlens = chance.integers(1, 90, int(chance.integers(1, 40))).tolist()
        whole = submission(*seqlens, outputs=OutputKind.POOLED | OutputKind.TOKENS)
        types = chance.integers(0, 9, sum(seqlens)).astype(np.int32)
        whole = replace(whole, parts={Part.TOKEN_TYPE_IDS: types.tobytes()})
        shares = chance.random(int(chance.integers(1, 5))) + 1e-9
        shares *= sum(seqlens) / shares.sum()
        parts = split(whole, shares.tolist())
        assert len(parts) == len(shares)
        assert [length for part in parts for length in part.seqlens] == list(seqlens)
        assert all(memoryview(part.token_ids).nbytes == 4 * sum(part.seqlens) for part in parts)
        answers = [RequestResults(expected(part), 0.5, 1.0) for part in parts if part.seqlens]
        joined = join(answers)
        assert_same(joined, expected(whole))
        assert (joined.queue_seconds, joined.compute_seconds) == (0.5, len(answers))


async def test_a_large_request_goes_to_all_in_parts(tmp_path: Path) -> None:
    async with connected(tmp_path, 2) as (client, managers, page):
        page.engines_ready[:] = 1
        page.tokens_per_second[:] = 1000
        page.queued_tokens[1, 0, 0] = 4000
        await until(lambda: all(one.is_up for one in client._managers))
        asked = asyncio.ensure_future(client.submit(LARGE))
        got = [await manager.submitted.get() for manager in managers]
        sizes = [sum(part.seqlens) for _, part in got]
        assert sum(sizes) == 31 * 512 + 100
        assert abs(sizes[0] - sizes[1] - 4000) <= 1024  # to a sequence for each
        for manager, one in reversed(list(zip(managers, got, strict=True))):
            answer(manager, *one)
        assert_same(await asked, expected(LARGE))
        small = asyncio.ensure_future(client.submit(submission(512)))
        answer(managers[0], *(await managers[0].submitted.get()))
        await small
        assert managers[1].submitted.empty()


@pytest.mark.holds("A bad input fails alone")
async def test_a_refusal_names_the_sequence_of_the_whole_and_ends_the_other_parts(tmp_path: Path) -> None:
    async with connected(tmp_path, 2) as (client, managers, page):
        page.engines_ready[:] = 2
        await until(lambda: all(one.is_up for one in client._managers))
        asked = asyncio.ensure_future(client.submit(LARGE))
        (first_id, first), (second_id, _) = [await manager.submitted.get() for manager in managers]
        refused = RequestRefused(RequestRefusal.TOO_LONG, 3)
        managers[1].send(messages.REFUSED, second_id, messages.encode_refused(refused))
        with pytest.raises(RequestRefused) as caught:
            await asked
        assert (caught.value.reason, caught.value.index) == (RequestRefusal.TOO_LONG, len(first.seqlens) + 3)
        assert await managers[0].cancelled.get() == first_id


@pytest.mark.holds("When a process dies")
async def test_a_part_whose_manager_dies_goes_to_the_other(tmp_path: Path) -> None:
    async with connected(tmp_path, 2) as (client, managers, page):
        page.engines_ready[:] = 1
        await until(lambda: all(one.is_up for one in client._managers))
        asked = asyncio.ensure_future(client.submit(LARGE))
        own, _ = [await manager.submitted.get() for manager in managers]
        page.engines_ready[1] = 0
        await managers[1].die()
        answer(managers[0], *own)
        answer(managers[0], *(await managers[0].submitted.get()))
        assert_same(await asked, expected(LARGE))


@pytest.mark.holds("Cancellation")
async def test_whoever_stops_waiting_cancels_all_parts(tmp_path: Path) -> None:
    async with connected(tmp_path, 2) as (client, managers, page):
        page.engines_ready[:] = 1
        await until(lambda: all(one.is_up for one in client._managers))
        asked = asyncio.ensure_future(client.submit(LARGE))
        ids = [(await manager.submitted.get())[0] for manager in managers]
        asked.cancel()
        assert [await manager.cancelled.get() for manager in managers] == ids
