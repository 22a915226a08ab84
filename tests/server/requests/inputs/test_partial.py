"""Requests whose wrong items have errors of their own: the others get exactly the rows that they would get without."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batch_manager import messages as batching
from batch_manager.messages import RequestRefused
from server.requests import embeddings
from server.requests.errors import EmptyInput, EngineFailed, InvalidRequest, NotTokenizable, RequestError
from server.requests.work import Embedded, Trace
from tests.server.edge import DIMENSIONS, Edge, Tokenizers
from tests.server.requests.embed_requests import a_request
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import TokenizedTexts

LONG = "x" * 17  # one more than the model takes


class Refusing(Tokenizers):
    """Refuses the first text with a question mark, as the real pool names one of several."""

    async def tokenize(self, texts: Sequence[str], **how: Any) -> TokenizedTexts:
        for index, text in enumerate(texts):
            if "?" in text:
                self.asked.append((texts, how))
                raise TextRefused(TextRefusal.FAILED, index)
        return await super().tokenize(texts, **how)


def embed(edge: Edge | None = None, **fields: Any) -> tuple[Embedded, Edge]:
    async def run() -> tuple[Embedded, Edge]:
        used = edge or Edge()
        used.tokenizers = used.pipeline._tokenizers = Refusing()  # type: ignore[assignment]
        try:
            request = a_request(allows_errors=True, **fields)
            return await embeddings.embed_any(used.pipeline, request, Trace()), used
        finally:
            assert not used.page.admitted_tokens.any()

    return asyncio.run(run())


def kinds(embedded: Embedded) -> dict[int, type[RequestError]]:
    return {place: type(error) for place, error in (embedded.failed or {}).items()}


def first_numbers(embedded: Embedded) -> list[float]:
    """The stand-in's rows say how long a text is."""
    return [float(number) for number in embedded.rows[:, 0]]


@pytest.mark.holds("Errors of single items")
def test_empty_long_and_untokenizable_texts_fail_alone() -> None:
    texts = ["one", "", "three", LONG, "?", "seventh"]
    embedded, edge = embed(items=texts, truncation=Truncation.NONE)

    assert kinds(embedded) == {1: EmptyInput, 3: InvalidRequest, 4: NotTokenizable}
    assert first_numbers(embedded) == [3, 0, 5, 0, 0, 7]
    assert (embedded.num_tokens, embedded.num_truncated) == (15, 0)
    (submission,) = edge.managers.submitted
    assert list(submission.seqlens) == [3, 5, 7]
    messages = {place: error.message for place, error in (embedded.failed or {}).items()}
    assert messages[1].startswith("input[1] ")
    assert messages[3] == "input[3] is longer than 16 tokens and truncation is off"
    assert messages[4].startswith("input[4] ")
    assert embedded.failed is not None
    assert [error.param for error in embedded.failed.values()] == [f"input[{place}]" for place in embedded.failed]


def test_long_texts_are_cut_where_truncation_is_on() -> None:
    embedded, _ = embed(items=["one", LONG, ""], truncation=Truncation.RIGHT)
    assert kinds(embedded) == {2: EmptyInput}
    assert embedded.truncated.tolist() == [0, 1, 0]


def test_nothing_is_computed_where_every_item_fails() -> None:
    embedded, edge = embed(items=["", LONG, "?"], truncation=Truncation.NONE, dimensions=4)
    assert kinds(embedded) == {0: EmptyInput, 1: InvalidRequest, 2: NotTokenizable}
    assert edge.managers.submitted == []
    assert embedded.rows.shape == (3, 4)
    assert not embedded.rows.any()


@pytest.mark.parametrize("num_bad", [0, 1, 7, 64])
def test_many_untokenizable_texts_cost_few_tries_each(num_bad: int) -> None:
    texts = ["?" if place < num_bad else "fine" for place in np.random.default_rng(1).permutation(64)]
    embedded, edge = embed(items=texts)
    assert sorted(kinds(embedded)) == [place for place, text in enumerate(texts) if text == "?"]
    assert len(edge.tokenizers.asked) <= 1 + 2 * num_bad
    assert sum(len(asked) for asked, _ in edge.tokenizers.asked) <= 64 * (1 + min(num_bad, 7))


def test_token_ids() -> None:
    ids = [[5, 6], [], [7, 100], list(range(17)), [8]]
    embedded, _ = embed(items=ids, truncation=Truncation.NONE)
    assert kinds(embedded) == {1: EmptyInput, 2: InvalidRequest, 3: InvalidRequest}
    assert first_numbers(embedded)[0::4] == [2, 1]


def test_texts_and_ids_in_one_request() -> None:
    embedded, _ = embed(items=["one", [5, 6], "", "?", "three", [100]])
    assert kinds(embedded) == {2: EmptyInput, 3: NotTokenizable, 5: InvalidRequest}
    assert first_numbers(embedded) == [3, 2, 0, 0, 5, 0]


def test_rows_are_cut_and_scaled_as_without() -> None:
    embedded, _ = embed(items=["one", ""], dimensions=4, normalize=True)
    assert embedded.rows.shape == (2, 4)
    assert np.allclose(embedded.rows[0], 0.5)


def test_a_refusal_that_names_no_item_fails_the_request() -> None:
    async def run() -> None:
        edge = Edge()
        edge.tokenizers.error = TextRefused(TextRefusal.FAILED, -1)
        await embeddings.embed_any(edge.pipeline, a_request(allows_errors=True), Trace())

    with pytest.raises(NotTokenizable):
        asyncio.run(run())


def test_an_engines_error_fails_the_request_and_names_the_right_item() -> None:
    async def run() -> None:
        edge = Edge()
        edge.managers.error = RequestRefused(batching.RequestRefusal.NON_FINITE, 1)
        await embeddings.embed_any(edge.pipeline, a_request(items=["", "one", "two"], allows_errors=True), Trace())

    with pytest.raises(EngineFailed) as refused:
        asyncio.run(run())
    assert refused.value.param == "input[2]"


def test_other_requests_go_the_usual_way() -> None:
    async def run() -> tuple[Embedded, Embedded]:
        edge, request = Edge(), a_request()
        allowed = replace(request, allows_errors=True)
        return await embeddings.embed_any(edge.pipeline, request, Trace()), await embeddings.embed_any(
            edge.pipeline, allowed, Trace()
        )

    plain, same = asyncio.run(run())
    assert plain.failed is None
    assert same.failed == {}
    assert np.array_equal(plain.rows, same.rows)
    assert plain.rows.shape == (2, DIMENSIONS)
