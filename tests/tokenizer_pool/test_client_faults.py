"""What becomes of requests when a worker dies or a client leaves."""

import asyncio

import pytest

from tests.tokenizer_pool.scripted import MANY, ScriptedWorker, answer_all, ask, numbers, scripted_pool, until
from tokenizer_pool.client import TokenizedTexts
from tokenizer_pool.messages import Refusal, TextRefused
from wire.vocabulary import RequestClass

pytestmark = pytest.mark.asyncio

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK


async def test_what_a_dead_worker_owes_goes_to_another() -> None:
    async with scripted_pool(2) as (pool, workers):
        request = ask(pool, MANY, BULK)
        queries = [ask(pool, [str(number)]) for number in range(10)]
        await until(lambda: workers[0].asked.qsize() + workers[1].asked.qsize() == 4 + len(queries))
        assert any(asked.piece.request_class is INTERACTIVE for asked in workers[0].die(restart=False))
        for number, query in enumerate(queries):
            assert (await answer_all(workers[1:], query)).token_ids.tolist() == [number]
        assert (await answer_all(workers[1:], request)).token_ids.tolist() == list(range(2048))
        assert pool.num_live == 1


async def test_what_a_dead_worker_owes_waits_for_it_where_there_is_no_other() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        request = ask(pool, MANY, BULK)
        query = ask(pool, ["7"])
        await until(lambda: worker.asked.qsize() == 3)
        worker.die(restart=False)
        await until(lambda: pool.num_live == 0)
        late = ask(pool, ["8"])
        await until(lambda: worker.num_connections > 0)  # the link is up again, but nobody is behind it
        assert worker.asked.empty()
        worker.start()
        resent = [await worker.asked.get() for _ in range(4)]
        assert [one.piece.texts for one in resent[:2]] == [["7"], ["8"]]  # interactive first, the older first
        assert numbers(resent[2])[0] == 0
        for one in resent:
            one.answer()
        assert ((await query).token_ids.tolist(), (await late).token_ids.tolist()) == ([7], [8])
        assert (await answer_all([worker], request)).token_ids.tolist() == list(range(2048))


async def test_a_text_that_takes_three_workers_down_is_refused_and_the_others_are_not() -> None:
    """The poison is the first piece of its class each time, since a worker runs them in order."""
    async with scripted_pool(1) as (pool, (worker,)):
        poison = ask(pool, ["666"])
        innocents = [ask(pool, [str(number)]) for number in range(5)]
        bulk = ask(pool, MANY, BULK)
        for _ in range(3):
            await until(lambda: worker.asked.qsize() == 8)
            assert worker.asked.get_nowait().piece.texts == ["666"]
            worker.die()
            await until(lambda: pool.num_live == 0)
        with pytest.raises(TextRefused) as caught:
            await poison
        assert (caught.value.reason, caught.value.index) == (Refusal.FAILED, 0)
        for number, innocent in enumerate(innocents):
            assert (await answer_all([worker], innocent)).token_ids.tolist() == [number]
        assert (await answer_all([worker], bulk)).token_ids.tolist() == list(range(2048))


async def test_a_bulk_piece_that_takes_workers_down_is_refused_though_queries_never_end() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        poison = ask(pool, MANY, BULK)
        deaths = 0
        while not poison.done():
            query = ask(pool, [str(deaths)])  # a new one each time
            await until(lambda: not worker.asked.empty())
            worker.die()
            deaths += 1
            await until(lambda: pool.num_live == 0)
            await answer_queries(worker, query)
        with pytest.raises(TextRefused) as caught:
            await poison
        assert (caught.value.reason, caught.value.index) == (Refusal.FAILED, -1)
        assert deaths == 3


async def answer_queries(worker: ScriptedWorker, query: asyncio.Task[TokenizedTexts]) -> None:
    """Answer interactive pieces alone, until the query is done."""
    unanswered = []
    while not query.done():
        while not worker.asked.empty():
            asked = worker.asked.get_nowait()
            if asked.piece.request_class is INTERACTIVE:
                asked.answer()
            else:
                unanswered.append(asked)
        await asyncio.sleep(0)
    for asked in unanswered:
        worker.asked.put_nowait(asked)


async def test_a_client_that_leaves_drops_what_was_not_sent() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        left = ask(pool, MANY, BULK)
        stays = ask(pool, MANY[:3], BULK)
        held = [await worker.asked.get(), await worker.asked.get()]
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        for one in held:
            one.answer()
        asked = await worker.asked.get()
        assert asked.piece.texts == MANY[:3]
        asked.answer()
        assert (await stays).token_ids.tolist() == [0, 1, 2]
        last = ask(pool, ["7"])
        assert (await worker.asked.get()).piece.texts == ["7"]  # nothing of the one who left came before
        last.cancel()


async def test_a_dead_worker_owes_nothing_to_those_who_left() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        left = ask(pool, ["1"])
        await worker.asked.get()
        left.cancel()
        worker.die()
        await until(lambda: pool.num_live == 0)
        last = ask(pool, ["7"])
        assert (await worker.asked.get()).piece.texts == ["7"]
        last.cancel()
