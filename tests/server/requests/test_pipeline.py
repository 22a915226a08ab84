"""The way of a request through the edge: what is asked of the pool and the managers, what is made of their answers."""

import asyncio
import math
import time
from typing import Any

import numpy as np
import pytest

from batch_manager import messages as batching
from batch_manager.messages import RequestRefused
from engine.types import OutputKind
from server.requests.errors import (
    DeadlineExceeded,
    EmptyInput,
    EngineFailed,
    InvalidRequest,
    NotReady,
    NotTokenizable,
    RequestError,
    UnsupportedTask,
)
from server.requests.pipeline import BULK_ITEMS, BULK_TOKENS, MAX_TOKEN_ROW_BYTES
from server.requests.trace import Trace
from server.requests.work import Embedded, EmbedRequest
from server.settings.api_keys import ApiKey
from tests.server.edge import DIMENSIONS, Edge, served_model
from tokenizer_pool import messages as tokenizing
from tokenizer_pool.messages import TextRefused, Truncation
from wire.vocabulary import RequestClass

ROWS = np.array([[3, 4, 12, 0, 0, 0, 0, 84], [0, 0, 0, 0, 0, 0, 0, 0], [1e-20] * 8], np.float32)


def a_request(**fields: Any) -> EmbedRequest:
    return EmbedRequest(**{"model": served_model(), "texts": ["one", "three"], **fields})


def embed(request: EmbedRequest, **stand_ins: Any) -> tuple[Embedded, Edge]:
    """The rows; `stand_ins` are set on the pool and the managers, as managers_error=…."""

    async def run() -> tuple[Embedded, Edge]:
        edge = Edge()
        for name, value in stand_ins.items():
            part, _, attribute = name.partition("_")
            setattr(getattr(edge, part), attribute, value)
        try:
            return await edge.pipeline.embed(request, Trace()), edge
        finally:
            assert not edge.page.admitted_tokens.any()  # nothing stays reserved, whatever happened

    return asyncio.run(run())


def error_of(request: EmbedRequest, **stand_ins: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        embed(request, **stand_ins)
    assert refused.value.__cause__ is None
    return refused.value


# the way there


def test_texts_go_through_the_pool_to_a_manager_and_come_back_as_rows() -> None:
    embedded, edge = embed(a_request(prompt="query: ", truncation=Truncation.LEFT, deadline=time.monotonic() + 60))

    assert embedded.rows[:, 0].tolist() == [3, 5]
    assert embedded.num_tokens == 8
    ((texts, how),) = edge.tokenizers.asked
    assert texts == ["one", "three"]
    assert (how["prompt"], how["truncation"], how["model"]) == ("query: ", Truncation.LEFT, 0)
    (submission,) = edge.managers.submitted
    assert list(submission.seqlens) == [3, 5]
    assert bytes(submission.token_ids) == np.array([ord(c) % 100 for c in "onethree"], np.int32).tobytes()
    assert submission.deadline < math.inf


@pytest.mark.holds("OpenAI's route")
def test_ids_go_as_they_stand_without_the_pool() -> None:
    ids = [[5, 6], list(range(40))]
    embedded, edge = embed(a_request(texts=None, token_ids=ids, prompt="query: "))

    assert edge.tokenizers.asked == []
    (submission,) = edge.managers.submitted
    assert list(submission.seqlens) == [2, 16]  # cut as text would be
    assert bytes(submission.token_ids) == np.array([5, 6, *range(16)], np.int32).tobytes()
    assert embedded.truncated.tolist() == [0, 1]
    assert embedded.num_truncated == 1


@pytest.mark.holds("Two classes of work")
@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (a_request(texts=["a"] * BULK_ITEMS), RequestClass.INTERACTIVE),
        (a_request(texts=["a"] * (BULK_ITEMS + 1)), RequestClass.BULK),
        (a_request(texts=["a"] * 9, request_class=RequestClass.INTERACTIVE), RequestClass.BULK),
        (a_request(request_class=RequestClass.INTERACTIVE), RequestClass.INTERACTIVE),
        (a_request(request_class=RequestClass.BULK), RequestClass.BULK),
        (a_request(texts=["a" * 10**6]), RequestClass.INTERACTIVE),  # most of it will be cut off
        (a_request(model=served_model(max_seqlen=10**6), texts=["a" * 4 * BULK_TOKENS]), RequestClass.BULK),
        (
            a_request(model=served_model(max_seqlen=10**6), texts=None, token_ids=[[1] * BULK_TOKENS]),
            RequestClass.INTERACTIVE,
        ),
        (a_request(model=served_model(max_seqlen=10**6), texts=None, token_ids=[[1] * 4097]), RequestClass.BULK),
    ],
)
def test_the_class_is_by_size_and_small_requests_may_ask_for_bulk(
    request_: EmbedRequest, expected: RequestClass
) -> None:
    _, edge = embed(request_)

    assert edge.managers.submitted[0].request_class is expected
    assert all(how["request_class"] is expected for _, how in edge.tokenizers.asked)


def test_tokens_count_as_admitted_until_the_answer_is_in() -> None:
    """Estimated ones until they are tokenized."""

    async def run() -> list[int]:
        edge, admitted = Edge(), []
        edge.tokenizers.at_work = lambda: admitted.append(int(edge.page.admitted_tokens.sum()))
        edge.managers.gate = asyncio.Event()
        asking = asyncio.create_task(edge.pipeline.embed(a_request(texts=["a" * 16]), Trace()))
        await edge.managers.arrivals.get()
        admitted.append(int(edge.page.admitted_tokens.sum()))
        edge.managers.gate.set()
        await asking
        return [*admitted, int(edge.page.admitted_tokens.sum())]

    assert asyncio.run(run()) == [16 // 4 + 2, 16, 0]


@pytest.mark.holds("Fair shares")
def test_batch_managers_learn_whose_a_request_is() -> None:
    async def run() -> list[tuple[int, float]]:
        edge = Edge(keys=[ApiKey("one", b"1"), ApiKey("two", b"2", weight=2.5)])
        for name in ("two", "one"):
            await edge.pipeline.embed(a_request(), Trace(key=name))
        return [(submission.key, submission.weight) for submission in edge.managers.submitted]

    assert asyncio.run(run()) == [(1, 2.5), (0, 1.0)]


# the way back


@pytest.mark.holds("Options that do not change the computation are applied at the edge", "OpenAI's route")
@pytest.mark.parametrize("dimensions", [None, 1, 3, DIMENSIONS])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("by_request", [False, True])
def test_rows_are_cut_first_and_then_scaled(dimensions: int | None, normalize: bool, by_request: bool) -> None:
    model = served_model(normalize=normalize != by_request)  # the request outranks it
    wished = normalize if by_request else None

    embedded, _ = embed(
        a_request(model=model, texts=["a", "b", "c"], dimensions=dimensions, normalize=wished), managers_rows=ROWS
    )

    expected = ROWS[:, :dimensions].astype(np.float64)
    if normalize:
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        expected = expected / np.maximum(lengths, 1e-12)
        assert np.linalg.norm(embedded.rows[0]) == pytest.approx(1)
    assert embedded.rows.dtype == np.float32
    assert np.allclose(embedded.rows, expected, rtol=1e-6, atol=0)
    assert not embedded.rows[1].any()  # zero stays zero, and is no NaN


@pytest.mark.parametrize("wished", [None, False, True])
def test_rows_of_tokens_are_scaled_only_where_that_is_wished(wished: bool | None) -> None:
    model = served_model(normalize=True)

    embedded, edge = embed(
        a_request(model=model, outputs=OutputKind.TOKENS, normalize=wished, dimensions=4), managers_rows=ROWS[:2] + 1
    )

    (submission,) = edge.managers.submitted
    assert submission.outputs is OutputKind.TOKENS
    assert embedded.offsets is not None
    assert embedded.offsets.tolist() == [0, 3, 8]
    assert embedded.num_tokens == 8
    expected = np.repeat(ROWS[:2, :4] + 1, [3, 5], axis=0)
    if wished:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(embedded.rows, expected, rtol=1e-6, atol=0)


def test_pooled_rows_have_no_offsets() -> None:
    embedded, _ = embed(a_request())
    assert embedded.offsets is None


# what goes wrong on the way

MANY = a_request(texts=["a", "b"])
SINGLE = a_request(texts=["a"], is_single=True)


@pytest.mark.holds("Errors")
@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (TextRefused(tokenizing.Refusal.TOO_LONG, 1, num_tokens=20, max_tokens=16), "is longer than 16 tokens and"),
        (TextRefused(tokenizing.Refusal.TOO_LONG, 1), "is longer than the model's limit and truncation is off"),
        (TextRefused(tokenizing.Refusal.FAILED, 1), "can't be tokenized"),
        (TextRefused(tokenizing.Refusal.EMPTY, 1), "has no tokens"),
        (TextRefused(tokenizing.Refusal.OUT_OF_VOCABULARY, 1), "has a token id that is not from 0 to 99"),
    ],
)
def test_a_text_that_is_refused(refused: TextRefused, message: str) -> None:
    error = error_of(MANY, tokenizers_error=refused)
    kinds = {tokenizing.Refusal.FAILED: NotTokenizable, tokenizing.Refusal.EMPTY: EmptyInput}
    assert type(error) is kinds.get(refused.reason, InvalidRequest)
    assert error.param == "input[1]"
    assert error.message.startswith(f"input[1] {message}")

    alone = error_of(SINGLE, tokenizers_error=TextRefused(refused.reason, 0))
    assert alone.param == "input"
    assert alone.message.startswith("input ")

    unknown = error_of(MANY, tokenizers_error=TextRefused(refused.reason, -1))
    assert unknown.param == "input"


def test_every_refusal_of_a_text_has_words_of_its_own() -> None:
    said = [error_of(MANY, tokenizers_error=TextRefused(reason, 1)).message for reason in tokenizing.Refusal]
    assert len(set(said)) == len(tokenizing.Refusal)


@pytest.mark.holds("OpenAI's route")
@pytest.mark.parametrize(
    ("ids", "param", "message"),
    [
        ([[5], []], "input[1]", "has no tokens"),
        ([[5], [99, 100]], "input[1]", "from 0 to 99"),
        ([[-1], [5]], "input[0]", "from 0 to 99"),
        ([[5], [2**31]], "input[1]", "from 0 to 99"),
        ([[5], [2**63]], "input[1]", "from 0 to 99"),
        ([[5], [-(2**80)]], "input[1]", "from 0 to 99"),
        ([[5], [*range(16), 100]], "input[1]", "from 0 to 99"),  # although it would be cut off
    ],
)
def test_ids_that_are_none_of_the_models(ids: list[list[int]], param: str, message: str) -> None:
    error = error_of(a_request(texts=None, token_ids=ids))

    assert type(error) is (EmptyInput if message == "has no tokens" else InvalidRequest)
    assert error.param == param
    assert message in error.message


def test_a_text_may_have_a_field_of_its_own_before_the_others() -> None:
    request = a_request(first_field="source", field="others")

    params = [error_of(request, tokenizers_error=TextRefused(tokenizing.Refusal.FAILED, at)).param for at in (-1, 0, 1)]

    assert params == ["others", "source", "others[0]"]


def test_ids_that_are_too_many_where_truncation_is_off() -> None:
    error = error_of(a_request(texts=None, token_ids=[[1] * 17], is_single=True, truncation=Truncation.NONE))
    assert (error.param, error.message) == ("input", "input is longer than 16 tokens and truncation is off")


@pytest.mark.holds("Errors")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (batching.Refusal.DEADLINE, DeadlineExceeded),
        (batching.Refusal.NO_ENGINE, NotReady),
        (batching.Refusal.ENGINE_FAILED, EngineFailed),
        (batching.Refusal.POISON, EngineFailed),
        (batching.Refusal.NON_FINITE, EngineFailed),
        (batching.Refusal.TOO_LONG, InvalidRequest),
        (batching.Refusal.STOPPING, NotReady),
    ],
)
def test_what_the_batch_manager_refuses(reason: batching.Refusal, kind: type[RequestError]) -> None:
    blamed = error_of(MANY, managers_error=RequestRefused(reason, 1))
    nobody = error_of(MANY, managers_error=RequestRefused(reason))

    assert type(blamed) is type(nobody) is kind
    assert nobody.param is None
    if kind in (EngineFailed, InvalidRequest):
        assert blamed.param == "input[1]"
        assert "input[1]" in blamed.message
    assert (nobody.retry_after is not None) == (kind is NotReady)


def test_an_answer_too_large_for_a_frame_is_the_requests_fault_as_a_whole() -> None:
    error = error_of(MANY, managers_error=RequestRefused(batching.Refusal.ANSWER_TOO_LARGE))

    assert type(error) is InvalidRequest
    assert "fewer inputs" in error.message


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    "dimensions", [{}, {"dimensions": 1}], ids=str
)  # a Dense may have made the pooled rows smaller
def test_rows_of_tokens_that_nobody_could_write_are_refused_before_they_are_computed(dimensions: Any) -> None:
    size = MAX_TOKEN_ROW_BYTES // 4 // 8
    model = served_model(**{"dimensions": size, "token_dimensions": size, **dimensions})

    async def run() -> None:
        edge = Edge()
        for texts in (["one", "three"], ["one", "threes"]):
            request = a_request(model=model, outputs=OutputKind.TOKENS, texts=texts)
            if texts[1] == "three":
                await edge.pipeline.embed(request, Trace())
                continue
            with pytest.raises(InvalidRequest, match="fewer inputs"):
                await edge.pipeline.embed(request, Trace())
            await edge.pipeline.embed(a_request(model=model, texts=texts), Trace())
        kinds = [submission.outputs for submission in edge.managers.submitted]
        assert kinds == [OutputKind.TOKENS, OutputKind.POOLED]

    asyncio.run(run())


@pytest.mark.holds("Errors")
def test_what_the_model_does_not_give_is_refused_at_once() -> None:
    error = error_of(a_request(model=served_model(outputs=OutputKind.POOLED), outputs=OutputKind.TOKENS))
    assert type(error) is UnsupportedTask
    error = error_of(a_request(model=served_model(outputs=OutputKind.LOGITS)))
    assert type(error) is UnsupportedTask


def test_every_refusal_of_the_batch_manager_is_a_request_error() -> None:
    assert all(error_of(MANY, managers_error=RequestRefused(reason, 0)).message for reason in batching.Refusal)


def test_when_to_try_again_is_passed_on() -> None:
    refused = RequestRefused(batching.Refusal.NO_ENGINE, retry_after=4.5)
    assert error_of(MANY, managers_error=refused).retry_after == 4.5


def test_a_deadline_that_passes_ends_the_wait() -> None:
    async def run() -> None:
        edge = Edge()
        edge.managers.gate = asyncio.Event()  # never set
        with pytest.raises(DeadlineExceeded):
            await edge.pipeline.embed(a_request(deadline=time.monotonic() + 0.01), Trace())

    asyncio.run(run())


def test_nothing_stays_counted_when_a_request_is_cancelled_or_refused() -> None:
    async def run() -> None:
        edge = Edge(max_requests=1)
        edge.managers.gate = asyncio.Event()
        waiting = asyncio.create_task(edge.pipeline.embed(a_request(), Trace()))
        await edge.managers.arrivals.get()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        edge.managers.gate.set()
        edge.tokenizers.error = TextRefused(tokenizing.Refusal.FAILED, 0)
        for _ in range(3):
            with pytest.raises(NotTokenizable):
                await edge.pipeline.embed(a_request(), Trace())
        edge.tokenizers.error = None
        assert len((await edge.pipeline.embed(a_request(), Trace())).rows) == 2
        assert not edge.page.admitted_tokens.any()

    asyncio.run(run())
