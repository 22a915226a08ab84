"""The way of a request through the edge: what is asked of the pool and the managers, what is made of their answers."""

import asyncio
import math
import time

import numpy as np
import pytest

from engine.types import OutputKind
from server.requests.errors import DeadlineExceeded
from server.requests.pipeline import BULK_ITEMS, BULK_TOKENS
from server.requests.work import EmbedRequest, RequestContext, Trace
from server.settings.api_keys import ApiKey
from tests.server.edge import DIMENSIONS, Edge, served_model
from tests.server.requests.embed_requests import a_request, embed
from tokenizer_pool.messages import Truncation
from wire.vocabulary import RequestClass

ROWS = np.array([[3, 4, 12, 0, 0, 0, 0, 84], [0, 0, 0, 0, 0, 0, 0, 0], [1e-20] * 8], np.float32)


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
    embedded, edge = embed(a_request(items=ids, prompt="query: "))

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
        (a_request(items=["a"] * BULK_ITEMS), RequestClass.INTERACTIVE),
        (a_request(items=["a"] * (BULK_ITEMS + 1)), RequestClass.BULK),
        (a_request(items=["a"] * 9, request_class=RequestClass.INTERACTIVE), RequestClass.BULK),
        (a_request(request_class=RequestClass.INTERACTIVE), RequestClass.INTERACTIVE),
        (a_request(request_class=RequestClass.BULK), RequestClass.BULK),
        (a_request(items=["a" * 10**6]), RequestClass.INTERACTIVE),  # most of it will be cut off
        (a_request(model=served_model(max_seqlen=10**6), items=["a" * 4 * BULK_TOKENS]), RequestClass.BULK),
        (
            a_request(model=served_model(max_seqlen=10**6), items=[[1] * BULK_TOKENS]),
            RequestClass.INTERACTIVE,
        ),
        (a_request(model=served_model(max_seqlen=10**6), items=[[1] * 4097]), RequestClass.BULK),
    ],
)
def test_the_class_is_by_size_and_small_requests_may_ask_for_bulk(
    request_: EmbedRequest, expected: RequestClass
) -> None:
    _, edge = embed(request_)

    assert edge.managers.submitted[0].request_class is expected
    assert all(how["request_class"] is expected for _, how in edge.tokenizers.asked)


async def test_tokens_count_as_admitted_until_the_answer_is_in() -> None:
    """Estimated ones until they are tokenized."""
    edge, admitted = Edge(), []
    edge.tokenizers.at_work = lambda: admitted.append(int(edge.page.admitted_tokens.sum()))
    edge.managers.gate = asyncio.Event()
    asking = asyncio.create_task(edge.pipeline.embed(a_request(items=["a" * 16]), Trace()))
    await edge.managers.arrivals.get()
    admitted.append(int(edge.page.admitted_tokens.sum()))
    edge.managers.gate.set()
    await asking
    assert [*admitted, int(edge.page.admitted_tokens.sum())] == [16 // 4 + 2, 16, 0]


@pytest.mark.holds("Fair shares")
async def test_batch_managers_learn_whose_a_request_is() -> None:
    edge = Edge(keys=[ApiKey("one", b"1"), ApiKey("two", b"2", weight=2.5)])
    for name in ("two", "one"):
        await edge.pipeline.embed(a_request(context=RequestContext(name)), Trace())
    assert [(submission.key, submission.weight) for submission in edge.managers.submitted] == [(1, 2.5), (0, 1.0)]


@pytest.mark.holds("Options that do not change the computation are applied at the edge", "OpenAI's route")
@pytest.mark.parametrize("dimensions", [None, 1, 3, DIMENSIONS])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("by_request", [False, True])
def test_rows_are_cut_first_and_then_scaled(dimensions: int | None, normalize: bool, by_request: bool) -> None:
    model = served_model(normalize=normalize != by_request)  # the request outranks it
    wished = normalize if by_request else None

    embedded, _ = embed(
        a_request(model=model, items=["a", "b", "c"], dimensions=dimensions, normalize=wished), managers_rows=ROWS
    )

    expected = ROWS[:, :dimensions].astype(np.float64)
    if normalize:
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        expected = expected / np.maximum(lengths, 1e-12)
        assert np.linalg.norm(embedded.rows[0]) == pytest.approx(1)
    assert embedded.rows.dtype == np.float32
    assert np.allclose(embedded.rows, expected, rtol=1e-6, atol=0)
    assert not embedded.rows[1].any()  # zero stays zero, and is no NaN


@pytest.mark.parametrize(("wished", "width"), [(None, 3), (2, 2), (5, 5), (DIMENSIONS, DIMENSIONS)])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_models_truncate_dim_cuts_rows_unless_the_request_says(
    wished: int | None, width: int, normalize: bool
) -> None:
    model = served_model(truncate_dim=3, normalize=normalize)

    embedded, _ = embed(a_request(model=model, items=["a"], dimensions=wished), managers_rows=ROWS[:1])

    expected = ROWS[:1, :width]
    assert np.allclose(embedded.rows, expected / (np.linalg.norm(expected) if normalize else 1), rtol=1e-6)


def test_a_models_truncate_dim_is_not_of_token_rows() -> None:
    """sentence-transformers cuts sentence embeddings alone."""
    embedded, _ = embed(
        a_request(model=served_model(truncate_dim=3), outputs=OutputKind.TOKENS), managers_rows=ROWS[:2]
    )
    assert embedded.rows.shape == (8, DIMENSIONS)


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


async def test_a_deadline_that_passes_ends_the_wait() -> None:
    edge = Edge()
    edge.managers.gate = asyncio.Event()  # never set
    with pytest.raises(DeadlineExceeded):
        await edge.pipeline.embed(a_request(deadline=time.monotonic() + 0.01), Trace())
