"""What becomes of requests when a worker dies or a client leaves."""

import asyncio
import gc
import struct
import weakref
from typing import Any

import pytest

from tests.tokenizer_pool.scripted import (
    MANY,
    ScriptedWorker,
    answer_all,
    ask,
    num_live,
    numbers,
    refusal_of,
    scripted_pool,
    until,
)
from tokenizer_pool import messages
from tokenizer_pool.messages import TextRefusal
from tokenizer_pool.tasks import TokenizedTexts
from wire.vocabulary import RequestClass

pytestmark = pytest.mark.faults

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK

UNREADABLE = [
    (messages.TOKENIZED, b""),
    (messages.TOKENIZED, b"short"),
    (messages.TOKENIZED, struct.pack("<dI", 0.1, 2)),  # the offsets are missing
    (messages.TOKENIZED, struct.pack("<dI3i", 0.1, 2, 0, 1, 9)),  # the ids are
    (messages.TOKENIZED, struct.pack("<dI2iiB", 0.1, 1, 0, 1, 7, 0)),  # a text too few
    (messages.REFUSED, b""),
    (messages.REFUSED, struct.pack("<BiII", 99, 0, 0, 0)),  # for no known reason
    (0x02FF, struct.pack("<dI3i2iH", 0.1, 2, 0, 1, 2, 7, 8, 0)),
]
UNREADABLE_DETAILS = [
    (messages.DETAILED, b""),
    (messages.DETAILED, struct.pack("<dI2i", 0.1, 1, 0, 9)),  # the tokens are missing
    (messages.DETAILED, struct.pack("<dI2i", 0.1, 1, 0, -9)),
    (messages.DETAILED, struct.pack("<dI3i", 0.1, 2, 0, 0, 0)),  # a text too many
    (messages.DECODED, struct.pack("<dII", 0.1, 1, 0)),  # to another task
    (messages.TOKENIZED, struct.pack("<dI2iiB", 0.1, 1, 0, 1, 7, 0)),
]


class Text(str):
    """A text of which a weak reference can be had."""


async def test_what_a_dead_worker_owes_goes_to_another() -> None:
    async with scripted_pool(2) as (pool, workers):
        request = ask(pool, MANY, BULK)
        queries = [ask(pool, [str(number)]) for number in range(10)]
        await until(lambda: workers[0].asked.qsize() + workers[1].asked.qsize() == 4 + len(queries))
        assert any(asked.piece.request_class is INTERACTIVE for asked in workers[0].die(restart=False))
        for number, query in enumerate(queries):
            assert (await answer_all(workers[1:], query)).token_ids.tolist() == [number]
        assert (await answer_all(workers[1:], request)).token_ids.tolist() == list(range(2048))
        assert num_live(pool) == 1


async def test_what_a_dead_worker_owes_waits_for_it_where_there_is_no_other() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        request = ask(pool, MANY, BULK)
        query = ask(pool, ["7"])
        await until(lambda: worker.asked.qsize() == 3)
        worker.die(restart=False)
        await until(lambda: num_live(pool) == 0)
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


@pytest.mark.holds("When a process dies")
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
            await until(lambda: num_live(pool) == 0)
        assert await refusal_of(poison) == (TextRefusal.FAILED, 0)
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
            await until(lambda: num_live(pool) == 0)
            await answer_queries(worker, query)
        assert await refusal_of(poison) == (TextRefusal.FAILED, -1)
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


@pytest.mark.holds("Cancellation")
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


async def test_those_who_leave_while_no_worker_is_there_leave_nothing_behind() -> None:
    async with scripted_pool(1, started=False) as (pool, (worker,)):
        texts = [Text(number) for number in MANY]
        kept = weakref.ref(texts[-1])
        left = [ask(pool, texts, request_class) for request_class in RequestClass]
        first, last = ask(pool, ["1"]), ask(pool, ["2"])
        await asyncio.sleep(0)  # they wait
        del texts
        for request in left:
            request.cancel()
        await asyncio.wait(left)
        del left, request
        gc.collect()
        assert kept() is None
        worker.start()
        for request, number in ((first, "1"), (last, "2")):
            asked = await worker.asked.get()
            assert asked.piece.texts == [number]
            asked.answer()
            await request


async def test_who_leaves_with_a_piece_in_a_workers_hands_leaves_nothing_else_behind() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        texts = [Text(number) for number in MANY]
        kept = weakref.ref(texts[-1])
        left = ask(pool, texts, BULK)
        await worker.asked.get()
        del texts
        left.cancel()
        await asyncio.wait([left])
        del left
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize(
    ("asks_details", "unreadable"), [(False, UNREADABLE), (True, UNREADABLE_DETAILS)], ids=["ids", "details"]
)
async def test_an_answer_that_cannot_be_read_fails_its_request_and_no_other(
    asks_details: bool, unreadable: list[tuple[int, bytes]]
) -> None:
    for kind, payload in unreadable:
        async with scripted_pool(1) as (pool, (worker,)):
            request: asyncio.Future[Any]
            if asks_details:
                request = asyncio.ensure_future(pool.tokenize_details(["1"], model=0, request_class=INTERACTIVE))
            else:
                request = ask(pool, ["1", "2"])
            await asyncio.sleep(0)
            other = ask(pool, ["3"])
            asked = await worker.asked.get()
            asked.connection.send(kind, asked.frame_id, [payload])
            assert await refusal_of(request) == (TextRefusal.FAILED, -1)
            assert (await answer_all([worker], other)).token_ids.tolist() == [3]
            assert (await answer_all([worker], ask(pool, ["4"]))).token_ids.tolist() == [4]


async def test_a_dead_worker_owes_nothing_to_those_who_left() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        left = ask(pool, ["1"])
        await worker.asked.get()
        left.cancel()
        worker.die()
        await until(lambda: num_live(pool) == 0)
        last = ask(pool, ["7"])
        assert (await worker.asked.get()).piece.texts == ["7"]
        last.cancel()
