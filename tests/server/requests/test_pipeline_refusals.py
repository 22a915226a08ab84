"""What the pipeline and those behind it refuse, as errors that name the field."""

import asyncio
from typing import Any

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
from server.requests.work import MAX_TOKEN_ROW_BYTES, EmbedRequest, Trace
from tests.server.edge import Edge, served_model
from tests.server.requests.embed_requests import a_request, embed
from tokenizer_pool import messages as tokenizing
from tokenizer_pool.messages import TextRefused, Truncation


def error_of(request: EmbedRequest, **stand_ins: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        embed(request, **stand_ins)
    assert refused.value.__cause__ is None
    return refused.value


MANY = a_request(items=["a", "b"])
SINGLE = a_request(items=["a"], is_single=True)


@pytest.mark.holds("Errors")
@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (TextRefused(tokenizing.TextRefusal.TOO_LONG, 1, num_tokens=20, max_tokens=16), "is longer than 16 tokens and"),
        (TextRefused(tokenizing.TextRefusal.TOO_LONG, 1), "is longer than the model's limit and truncation is off"),
        (TextRefused(tokenizing.TextRefusal.FAILED, 1), "can't be tokenized"),
        (TextRefused(tokenizing.TextRefusal.EMPTY, 1), "has no tokens"),
        (TextRefused(tokenizing.TextRefusal.OUT_OF_VOCABULARY, 1), "has a token id that is not from 0 to 99"),
    ],
)
def test_a_text_that_is_refused(refused: TextRefused, message: str) -> None:
    error = error_of(MANY, tokenizers_error=refused)
    kinds = {tokenizing.TextRefusal.FAILED: NotTokenizable, tokenizing.TextRefusal.EMPTY: EmptyInput}
    assert type(error) is kinds.get(refused.reason, InvalidRequest)
    assert error.param == "input[1]"
    assert error.message.startswith(f"input[1] {message}")

    alone = error_of(SINGLE, tokenizers_error=TextRefused(refused.reason, 0))
    assert alone.param == "input"
    assert alone.message.startswith("input ")

    unknown = error_of(MANY, tokenizers_error=TextRefused(refused.reason, -1))
    assert unknown.param == "input"


def test_every_refusal_of_a_text_has_words_of_its_own() -> None:
    said = [error_of(MANY, tokenizers_error=TextRefused(reason, 1)).message for reason in tokenizing.TextRefusal]
    assert len(set(said)) == len(tokenizing.TextRefusal)


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
    error = error_of(a_request(items=ids))

    assert type(error) is (EmptyInput if message == "has no tokens" else InvalidRequest)
    assert error.param == param
    assert message in error.message


def test_a_text_may_have_a_field_of_its_own_before_the_others() -> None:
    request = a_request(first_field="source", field="others")

    params = [
        error_of(request, tokenizers_error=TextRefused(tokenizing.TextRefusal.FAILED, at)).param for at in (-1, 0, 1)
    ]

    assert params == ["others", "source", "others[0]"]


def test_ids_that_are_too_many_where_truncation_is_off() -> None:
    error = error_of(a_request(items=[[1] * 17], is_single=True, truncation=Truncation.NONE))
    assert (error.param, error.message) == ("input", "input is longer than 16 tokens and truncation is off")


@pytest.mark.holds("Errors")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (batching.RequestRefusal.DEADLINE, DeadlineExceeded),
        (batching.RequestRefusal.NO_ENGINE, NotReady),
        (batching.RequestRefusal.ENGINE_FAILED, EngineFailed),
        (batching.RequestRefusal.POISON, EngineFailed),
        (batching.RequestRefusal.NON_FINITE, EngineFailed),
        (batching.RequestRefusal.TOO_LONG, InvalidRequest),
        (batching.RequestRefusal.STOPPING, NotReady),
    ],
)
def test_what_the_batch_manager_refuses(reason: batching.RequestRefusal, kind: type[RequestError]) -> None:
    blamed = error_of(MANY, managers_error=RequestRefused(reason, 1))
    nobody = error_of(MANY, managers_error=RequestRefused(reason))

    assert type(blamed) is type(nobody) is kind
    assert nobody.param is None
    if kind in (EngineFailed, InvalidRequest):
        assert blamed.param == "input[1]"
        assert "input[1]" in blamed.message
    assert (nobody.retry_after is not None) == (kind is NotReady)


def test_an_answer_too_large_for_a_frame_is_the_requests_fault_as_a_whole() -> None:
    error = error_of(MANY, managers_error=RequestRefused(batching.RequestRefusal.ANSWER_TOO_LARGE))

    assert type(error) is InvalidRequest
    assert "fewer inputs" in error.message


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    "dimensions", [{}, {"dimensions": 1}], ids=str
)  # a Dense may have made the pooled rows smaller
async def test_rows_of_tokens_that_nobody_could_write_are_refused_before_they_are_computed(dimensions: Any) -> None:
    size = MAX_TOKEN_ROW_BYTES // 4 // 8
    model = served_model(**{"dimensions": size, "token_dimensions": size, **dimensions})
    edge = Edge(max_held_bytes=1 << 40)
    for texts in (["one", "three"], ["one", "threes"]):
        request = a_request(model=model, outputs=OutputKind.TOKENS, items=texts)
        if texts[1] == "three":
            await edge.pipeline.embed(request, Trace())
            continue
        with pytest.raises(InvalidRequest, match="fewer inputs"):
            await edge.pipeline.embed(request, Trace())
        await edge.pipeline.embed(a_request(model=model, items=texts), Trace())
    kinds = [submission.outputs for submission in edge.managers.submitted]
    assert kinds == [OutputKind.TOKENS, OutputKind.POOLED]


@pytest.mark.holds("Errors")
def test_what_the_model_does_not_give_is_refused_at_once() -> None:
    error = error_of(a_request(model=served_model(outputs=OutputKind.POOLED), outputs=OutputKind.TOKENS))
    assert type(error) is UnsupportedTask
    error = error_of(a_request(model=served_model(outputs=OutputKind.LOGITS)))
    assert type(error) is UnsupportedTask


def test_every_refusal_of_the_batch_manager_is_a_request_error() -> None:
    assert all(error_of(MANY, managers_error=RequestRefused(reason, 0)).message for reason in batching.RequestRefusal)


def test_when_to_try_again_is_passed_on() -> None:
    refused = RequestRefused(batching.RequestRefusal.NO_ENGINE, retry_after=4.5)
    assert error_of(MANY, managers_error=refused).retry_after == 4.5


async def test_nothing_stays_counted_when_a_request_is_cancelled_or_refused() -> None:
    edge = Edge(max_requests=1)
    edge.managers.gate = asyncio.Event()
    waiting = asyncio.create_task(edge.pipeline.embed(a_request(), Trace()))
    await edge.managers.arrivals.get()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    edge.managers.gate.set()
    edge.tokenizers.error = TextRefused(tokenizing.TextRefusal.FAILED, 0)
    for _ in range(3):
        with pytest.raises(NotTokenizable):
            await edge.pipeline.embed(a_request(), Trace())
    edge.tokenizers.error = None
    assert len((await edge.pipeline.embed(a_request(), Trace())).rows) == 2
    assert not edge.page.admitted_tokens.any()
