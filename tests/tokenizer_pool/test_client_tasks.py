"""Tokens one by one and texts of ids go the same way as ids: split, joined, tried again, refused."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.tokenizer_pool.scripted import MANY, answer_all, ask, num_live, refusal_of, scripted_pool, until
from tokenizer_pool import client
from tokenizer_pool.client import MAX_DECODE_IDS, MAX_DETAIL_CHARS, TokenizerPool
from tokenizer_pool.messages import TextRefusal
from tokenizer_pool.tasks import DecodePiece, DetailPiece, Token
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK


def details(
    pool: TokenizerPool, texts: Sequence[str], request_class: RequestClass = INTERACTIVE, **options: Any
) -> asyncio.Task[list[list[Token]]]:
    asking = pool.tokenize_details(texts, model=0, request_class=request_class, **options)
    return asyncio.get_running_loop().create_task(asking)


def decode(
    pool: TokenizerPool, token_ids: Sequence[Sequence[int]], request_class: RequestClass = INTERACTIVE, **options: Any
) -> asyncio.Task[list[str]]:
    return asyncio.get_running_loop().create_task(
        pool.decode(token_ids, model=0, request_class=request_class, **options)
    )


async def test_what_was_asked_for_reaches_the_worker() -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        first = details(pool, ["1", "2"], BULK, prompt="query: ", add_special_tokens=False)
        assert (await worker.asked.get()).piece == DetailPiece(0, BULK, ["1", "2"], "query: ", False)
        second = decode(pool, [[1, 2], [], [3]], BULK, skip_special_tokens=False)
        piece = (await worker.asked.get()).piece
        assert isinstance(piece, DecodePiece)
        assert (piece.model, piece.request_class, piece.skip_special_tokens) == (0, BULK, False)
        assert (piece.token_ids.tolist(), piece.offsets.tolist()) == ([1, 2, 3], [0, 2, 2, 3])
        first.cancel()
        second.cancel()


@pytest.mark.parametrize("request_class", RequestClass)
async def test_many_come_back_in_order_beside_each_other(request_class: RequestClass) -> None:
    async with scripted_pool(2) as (pool, workers):
        lists = [[number, 1] for number in range(2048)]
        asked = details(pool, MANY, request_class), decode(pool, lists, request_class), ask(pool, MANY, request_class)
        assert [tokens[0].token_id for tokens in await answer_all(workers, asked[0])] == list(range(2048))
        assert await answer_all(workers, asked[1]) == [str(number + 1) for number in range(2048)]
        assert (await answer_all(workers, asked[2])).token_ids.tolist() == list(range(2048))


@pytest.mark.parametrize("start", [lambda pool: details(pool, ["1"]), lambda pool: decode(pool, [[1]])])
async def test_what_takes_workers_down_is_refused(start: Any) -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        poison = start(pool)
        for _ in range(3):
            await until(lambda: not worker.asked.empty())
            worker.die()
            await until(lambda: num_live(pool) == 0)
        assert await refusal_of(poison) == (TextRefusal.FAILED, 0)
        assert (await answer_all([worker], ask(pool, ["7"]))).token_ids.tolist() == [7]


@pytest.mark.parametrize("bad", [-1, 2**31, 2**63, -(2**80)])
async def test_an_id_that_no_vocabulary_has_is_never_sent(bad: int) -> None:
    async with scripted_pool(1) as (pool, (worker,)):
        assert await refusal_of(decode(pool, [[], [2, bad], []])) == (TextRefusal.OUT_OF_VOCABULARY, 1)
        assert worker.asked.empty()


@pytest.mark.holds("Limits")
async def test_more_than_one_request_may_have_is_refused() -> None:
    async with scripted_pool(1) as (pool, workers):
        text = "1" * (MAX_DETAIL_CHARS // 32 - 1)
        too_much = details(pool, [text] * 32, prompt="pp"), decode(pool, [[1] * MAX_DECODE_IDS, [1]])
        assert [(await refusal_of(one))[0] for one in too_much] == [TextRefusal.TOO_MUCH] * 2
        assert workers[0].asked.empty()
        assert len(await answer_all(workers, details(pool, [text] * 32, prompt="p"))) == 32
        assert await answer_all(workers, decode(pool, [[1] * MAX_DECODE_IDS])) == [str(MAX_DECODE_IDS)]


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    ("texts", "prompt", "too_much"),
    [(["1" * 15] * 2, "", ["1", "22"]), (["1", "2"], "p" * 14, ["1", "2"])],
    ids=["query", "instruction"],
)
async def test_it_counts_with_each_of_the_documents(
    texts: list[str], prompt: str, too_much: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_REPEATED_CHARS", 32)
    async with scripted_pool(1) as (pool, workers):
        asked = partial(pool.tokenize, texts, model=0, request_class=BULK)
        over: dict[str, Any] = {"pair_texts": too_much, "prompt": prompt + "p" * (prompt != "")}
        assert await refusal_of(asked(**over)) == (TextRefusal.TOO_MUCH, -1)
        assert workers[0].asked.empty()
        request = asyncio.get_running_loop().create_task(asked(pair_texts=["1", "2"], prompt=prompt))
        assert len((await answer_all(workers, request)).truncated) == 2


async def test_a_lone_surrogate_is_refused_with_its_index() -> None:
    async with scripted_pool(1) as (pool, _):
        assert await refusal_of(details(pool, ["1", "\ud800"])) == (TextRefusal.FAILED, 1)
