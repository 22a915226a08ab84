"""How a frontend spreads requests over workers and gets them back."""

import asyncio
from typing import Any

import pytest

from tests.tokenizer_pool.scripted import (
    MANY,
    MAX_SEQLEN,
    answer_all,
    ask,
    num_live,
    numbers,
    refusal_of,
    scripted_pool,
    until,
)
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.shortening import LONG_TEXT_CHARS
from tokenizer_pool.tasks import ScanPiece
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK


async def test_what_was_asked_for_reaches_the_worker() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        request = asyncio.ensure_future(
            pool.tokenize(["1", "2"], model=0, request_class=BULK, truncation=Truncation.LEFT, prompt="query: ")
        )
        asked = await worker.asked.get()
        piece = asked.piece
        assert (piece.model, piece.request_class, piece.truncation) == (0, BULK, Truncation.LEFT)
        assert (piece.texts, piece.prompt) == (["1", "2"], "query: ")
        asked.answer()
        assert not (await request).token_ids.flags.owndata, "an answer to the whole is not copied"


async def test_pairs_reach_workers_together() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        request = asyncio.ensure_future(
            pool.tokenize(MANY, model=0, request_class=BULK, prompt="query: ", pair_texts=MANY[::-1])
        )
        sent = []
        while not request.done():
            while not worker.asked.empty():
                sent.append(worker.asked.get_nowait())
                sent[-1].answer()
            await asyncio.sleep(0)
        assert [text for one in sent for text in one.piece.texts] == MANY
        assert [text for one in sent for text in one.piece.pair_texts] == MANY[::-1]
        assert len(sent) > 1
        assert (await request).offsets.tolist() == list(range(2049))


async def test_bulk_waits_in_the_client_beyond_two_pieces_a_worker() -> None:
    async with scripted_pool(2) as (pool, workers):
        request = ask(pool, MANY, BULK)
        held = [[await worker.asked.get(), await worker.asked.get()] for worker in workers]
        query = ask(pool, ["7"])  # comes after all that is sent, and shows that no more bulk was
        await until(lambda: any(not worker.asked.empty() for worker in workers))
        waiting = [
            one for worker in workers for one in [worker.asked.get_nowait() for _ in range(worker.asked.qsize())]
        ]
        assert [one.piece.texts for one in waiting] == [["7"]]
        held[1][0].answer()  # whoever is free gets the next
        following = await workers[1].asked.get()
        assert numbers(following)[0] == max(numbers(one)[-1] for one in [*held[0], *held[1]]) + 1
        assert workers[0].asked.empty()
        for one in [*held[0], held[1][1], following, *waiting]:
            one.answer()
        assert (await query).token_ids.tolist() == [7]
        assert (await answer_all(workers, request)).token_ids.tolist() == list(range(2048))


async def test_interactive_goes_to_the_worker_with_the_least_to_do() -> None:
    async with scripted_pool(3) as (pool, workers):
        for length in (3000, 2000, 1000):
            ask(pool, ["1" * length])
        held = [await worker.asked.get() for worker in workers]
        assert [len(one.piece.texts[0]) for one in held] == [3000, 2000, 1000]
        ask(pool, ["2" * 1500])
        assert len((await workers[2].asked.get()).piece.texts[0]) == 1500
        ask(pool, ["3"])
        assert (await workers[1].asked.get()).piece.texts == ["3"]


async def test_idle_workers_take_turns() -> None:
    async with scripted_pool(3) as (pool, workers):
        for number in range(6):
            request = ask(pool, [str(number)])
            asked = await workers[number % 3].asked.get()
            asked.answer()
            await request


@pytest.mark.parametrize("request_class", RequestClass)
async def test_requests_of_a_class_take_turns(request_class: RequestClass) -> None:
    """So a small request is not behind all of a large one, whatever class the large one gave itself."""
    async with scripted_pool(1) as (pool, (worker,)):
        large = ask(pool, MANY, request_class)
        first, second = await worker.asked.get(), await worker.asked.get()
        small = ask(pool, ["7"], request_class)
        first.answer()
        assert numbers(await worker.asked.get())[0] == numbers(second)[-1] + 1  # it was the large one's turn
        second.answer()
        asked = await worker.asked.get()
        assert asked.piece.texts == ["7"]
        asked.answer()
        await small
        assert not large.done()
        large.cancel()


async def test_nothing_is_sent_to_a_worker_before_it_is_ready() -> None:
    async with scripted_pool(2, started=False) as (pool, workers):
        request = ask(pool, ["7"])
        workers[1].start()
        (await workers[1].asked.get()).answer()
        assert (await request).token_ids.tolist() == [7]
        assert workers[0].asked.empty()
        assert num_live(pool) == 1


async def test_a_refusal_names_the_text_of_the_request() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        request = ask(pool, MANY, BULK)
        _, second = await worker.asked.get(), await worker.asked.get()
        second.refuse(TextRefused(TextRefusal.TOO_LONG, 3, num_tokens=300, max_tokens=MAX_SEQLEN))
        with pytest.raises(TextRefused) as caught:
            await request
        refused = caught.value
        assert (refused.reason, refused.index) == (TextRefusal.TOO_LONG, numbers(second)[3])
        assert (refused.num_tokens, refused.max_tokens) == (300, MAX_SEQLEN)


async def test_a_refused_request_is_over() -> None:
    """What it has not sent yet never is, and answers that still come are of no use to anyone."""
    async with scripted_pool(1) as (pool, (worker,)):
        request = ask(pool, MANY, BULK)
        first, second = await worker.asked.get(), await worker.asked.get()
        first.refuse(TextRefused(TextRefusal.FAILED, -1))
        with pytest.raises(TextRefused) as caught:
            await request
        assert caught.value.index == -1
        second.answer()
        last = ask(pool, ["7"])
        assert (await worker.asked.get()).piece.texts == ["7"]
        last.cancel()


@pytest.mark.parametrize("place", [0, 1, 1500])
@pytest.mark.parametrize("is_second", [False, True])
async def test_a_lone_surrogate_is_refused_with_its_index(place: int, is_second: bool) -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        wrong = list(MANY)
        wrong[place] = "\ud800"
        texts, pairs = (MANY, wrong) if is_second else (wrong, ())
        request = asyncio.ensure_future(pool.tokenize(texts, model=0, request_class=BULK, pair_texts=pairs))
        assert await refusal_of(answer_all([worker], request)) == (TextRefusal.FAILED, place)


async def test_a_lone_surrogate_in_a_prompt_is_nobodys_text() -> None:
    async with scripted_pool(1) as (pool, _):
        with pytest.raises(TextRefused) as caught:
            await pool.tokenize(["1"], model=0, request_class=INTERACTIVE, prompt="\udfff")
        assert caught.value.index == -1


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    ("truncation", "num_slices"), [(Truncation.RIGHT, 1), (Truncation.NONE, 1), (Truncation.LEFT, 21)]
)
async def test_no_more_of_a_long_text_is_scanned_than_must_be(truncation: Truncation, num_slices: int) -> None:
    """A slice here has as many tokens as characters."""
    async with scripted_pool(1) as (pool, (worker,)):
        long = "2" * (2 * LONG_TEXT_CHARS)
        request = ask(pool, ["1", long, "4"], truncation=truncation)
        pieces: list[Any] = []
        while not request.done():
            while not worker.asked.empty():
                pieces.append(worker.asked.get_nowait())
                pieces[-1].answer()
            await asyncio.sleep(0)
        slices = [one.piece.text for one in pieces if isinstance(one.piece, ScanPiece)]
        assert abs(len(slices) - num_slices) <= num_slices // 10
        assert max(map(len, slices)) < 6000
        if truncation is Truncation.NONE:
            assert await refusal_of(request) == (TextRefusal.TOO_LONG, 1)
            assert len(pieces) == num_slices
            return
        await request
        assert MAX_SEQLEN < max(len(text) for one in pieces[len(slices) :] for text in one.piece.texts) < 6000


async def test_others_have_their_turn_between_two_slices() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        long = ask(pool, ["2" * (4 * LONG_TEXT_CHARS)], truncation=Truncation.LEFT)
        slice_ = await worker.asked.get()
        query = ask(pool, ["1"])
        await asyncio.sleep(0)
        slice_.answer()
        turn = await worker.asked.get()
        assert numbers(turn) == [1]
        turn.answer()
        await query
        assert not long.done()
        await answer_all([worker], long)


async def test_a_worker_that_dies_while_it_scans_costs_nothing() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        request = ask(pool, ["1", "2" * (2 * LONG_TEXT_CHARS)])
        await worker.asked.get()
        worker.die()
        await until(lambda: num_live(pool) == 1)
        assert len((await answer_all([worker], request)).truncated) == 2


async def test_closing_cancels_who_still_waits() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        sent = ask(pool, ["1"])
        await worker.asked.get()
        partly_sent = ask(pool, MANY, BULK)
        await worker.asked.get()
        pool.close()
        for request in (sent, partly_sent):
            with pytest.raises(asyncio.CancelledError):
                await request
