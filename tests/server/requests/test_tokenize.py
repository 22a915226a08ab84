"""Texts to tokens and ids to texts at the edge: what is asked of the pool, what becomes of its refusals."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from batch_manager.client import BatchManagers
from server.requests.admission import Admission
from server.requests.errors import InvalidRequest, NotTokenizable, RequestError
from server.requests.pipeline import BULK_ITEMS, BULK_TOKENS, Pipeline
from server.requests.work import DecodeRequest, RequestContext, TokenizeRequest, Trace
from tests.server.edge import served_model
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefusal, TextRefused
from tokenizer_pool.tasks import Token
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK


class Pool:
    """One token for each text, named like it; the text of ids is their number. Takes note of what it is asked."""

    def __init__(self, error: TextRefused | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self._error = error

    async def tokenize_details(self, texts: Sequence[str], **how: Any) -> list[list[Token]]:
        await self._note(how)
        return [[Token(7, text, False, 0, len(text))] for text in texts]

    async def decode(self, token_ids: Sequence[Sequence[int]], **how: Any) -> list[str]:
        await self._note(how)
        return [str(len(ids)) for ids in token_ids]

    async def _note(self, how: dict[str, Any]) -> None:
        self.asked.append(how)
        if self._error is not None:
            raise self._error


def pipeline_of(pool: Pool) -> Pipeline:
    """One that needs no batch manager."""
    return Pipeline(cast(Admission, None), cast(TokenizerPool, pool), cast(BatchManagers, None))


def tokenize(pool: Pool, **fields: Any) -> tuple[list[list[Token]], Trace]:
    request, trace = (
        TokenizeRequest(**{"model": served_model(), "items": ["one", "three"], "context": RequestContext(), **fields}),
        Trace(),
    )
    return asyncio.run(pipeline_of(pool).tokenize(request, trace)), trace


def decode(pool: Pool, **fields: Any) -> tuple[list[str], Trace]:
    request, trace = (
        DecodeRequest(**{"model": served_model(), "items": [[1, 2], []], "context": RequestContext(), **fields}),
        Trace(),
    )
    return asyncio.run(pipeline_of(pool).decode(request, trace)), trace


def test_tokens_of_texts() -> None:
    pool = Pool()
    tokens, trace = tokenize(pool, prompt="query: ", add_special_tokens=False)
    assert tokens == [[Token(7, "one", False, 0, 3)], [Token(7, "three", False, 0, 5)]]
    expected = {"model": 0, "request_class": INTERACTIVE, "prompt": "query: ", "add_special_tokens": False}
    assert pool.asked == [expected]
    assert (trace.model, trace.num_items, trace.num_characters, trace.num_tokens) == ("the-model", 2, 8, 2)
    assert (trace.stage, trace.request_class, trace.is_single) == ("respond", "interactive", False)
    assert trace.tokenize_seconds > 0


def test_texts_of_ids() -> None:
    pool = Pool()
    texts, trace = decode(pool, skip_special_tokens=False, is_single=True)
    assert texts == ["2", "0"]
    assert pool.asked == [{"model": 0, "request_class": INTERACTIVE, "skip_special_tokens": False}]
    assert (trace.model, trace.num_items, trace.num_tokens, trace.is_single) == ("the-model", 2, 2, True)
    assert trace.stage == "respond"


@pytest.mark.holds("Two classes of work")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"items": ["a"] * BULK_ITEMS}, INTERACTIVE),
        ({"items": ["a"] * (BULK_ITEMS + 1)}, BULK),
        ({"items": ["a" * (BULK_TOKENS + 1) * 4]}, BULK),
        ({"items": ["a"] * 99, "request_class": INTERACTIVE}, BULK),
        ({"request_class": BULK}, BULK),
    ],
)
def test_the_class_is_by_size_and_small_requests_may_ask_for_bulk(
    fields: dict[str, Any], expected: RequestClass
) -> None:
    pool = Pool()
    _, trace = tokenize(pool, **fields)
    assert (pool.asked[0]["request_class"], trace.request_class) == (expected, expected.name.lower())


def test_many_ids_are_bulk() -> None:
    pool = Pool()
    decode(pool, items=[[1] * BULK_TOKENS])
    decode(pool, items=[[1] * BULK_TOKENS, [1]])
    assert [asked["request_class"] for asked in pool.asked] == [INTERACTIVE, BULK]


def refused(reason: TextRefusal, index: int) -> TextRefused:
    return TextRefused(reason, index, max_tokens=16)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    ("reason", "index", "message"),
    [
        (
            TextRefusal.TOO_MUCH,
            -1,
            "inputs is too large for one request, which may have 1048576 characters together; "
            "send fewer or shorter ones",
        ),
        (TextRefusal.FAILED, 1, "inputs[1] can't be tokenized"),
    ],
)
def test_a_text_that_is_refused(reason: TextRefusal, index: int, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        tokenize(Pool(refused(reason, index)))
    assert type(caught.value) is (NotTokenizable if reason is TextRefusal.FAILED else InvalidRequest)
    assert (caught.value.message, caught.value.param) == (message, message.split()[0])


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (TextRefusal.OUT_OF_VOCABULARY, "ids has an id that the tokenizer has no token for"),
        (TextRefusal.FAILED, "ids can't be decoded"),
    ],
)
def test_ids_that_are_refused(reason: TextRefusal, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(Pool(refused(reason, 0)), items=[[5]], is_single=True)
    assert type(caught.value) is (NotTokenizable if reason is TextRefusal.FAILED else InvalidRequest)
    assert (caught.value.message, caught.value.param) == (message, "ids")
