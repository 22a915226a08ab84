"""Queries and documents that may have only so many tokens of their own, before they are put together."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.model.tasks import Activation, Task
from engine.types import OutputKind
from server.requests import rerank
from server.requests.errors import NotTokenizable
from server.requests.rerank import Ranked, RerankRequest, rank
from server.requests.work import RequestContext, Trace
from tests.server.edge import Edge, Tokenizers, served_model
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.shortening import LONG_TEXT_CHARS
from tokenizer_pool.tasks import Token

PAIRS = {"outputs": OutputKind.LOGITS, "task": Task.RERANK, "activation": Activation.SIGMOID, "labels": ("yes",)}
DOCUMENTS = ["abc", "abcdef", "é", "ghijk"]  # the stand-in has a token for each character


def ranked(model: dict[str, Any], **fields: Any) -> tuple[Ranked, Edge]:
    async def run() -> tuple[Ranked, Edge]:
        edge = Edge()
        given: dict[str, Any] = {"queries": ["who"], "documents": DOCUMENTS, "max_document_tokens": 3, **fields}
        request = RerankRequest(model=served_model(**model), context=RequestContext(), **given)
        return await rank(edge.pipeline, request, Trace()), edge

    return asyncio.run(run())


@pytest.mark.holds("Reranking")
@pytest.mark.parametrize(
    ("truncation", "kept"),
    [(Truncation.RIGHT, ["abc", "abc", "é", "ghi"]), (Truncation.NONE, ["abc", "abc", "é", "ghi"])],
)
def test_documents_of_pairs_are_cut(truncation: Truncation, kept: list[str]) -> None:
    found, edge = ranked(PAIRS, truncation=truncation)
    details, *_, (texts, how) = edge.tokenizers.asked
    assert details[0] == DOCUMENTS  # all that have three characters or more, or one that may be several tokens
    assert details[1]["add_special_tokens"] is False
    assert (list(texts), list(how["pair_texts"])) == (["who"] * 4, kept)
    assert found.truncated.tolist() == [0, 1, 0, 1]


def test_the_last_tokens_stay_where_the_first_are_cut() -> None:
    _, edge = ranked(PAIRS, truncation=Truncation.LEFT)
    assert list(edge.tokenizers.asked[-1][1]["pair_texts"]) == ["abc", "def", "é", "ijk"]


class Splitting(Tokenizers):
    """The first character of a text is a token more where it is none that a word begins with."""

    has_place = True  # whether that token stands for the character

    async def tokenize_details(self, texts: Sequence[str], **how: Any) -> list[list[Token]]:
        found = await super().tokenize_details(texts, **how)
        extra = Token(7, "", False, 0, int(self.has_place))
        return [
            [extra, *tokens] if text[:1] not in ("", "a") else tokens for text, tokens in zip(texts, found, strict=True)
        ]


@pytest.mark.holds("Reranking")
@pytest.mark.parametrize(
    ("document", "truncation", "limit", "has_place", "kept"),
    [
        ("abcdef", Truncation.LEFT, 3, True, "ef"),
        ("abcdef", Truncation.LEFT, 3, False, "ef"),
        ("abcdef", Truncation.LEFT, 1, True, ""),
        ("abcdef", Truncation.LEFT, 1, False, ""),
        ("bcdef", Truncation.RIGHT, 3, True, "bc"),
        ("bcdef", Truncation.RIGHT, 1, False, ""),
    ],
)
def test_what_is_left_never_has_too_many_tokens(
    document: str, truncation: Truncation, limit: int, has_place: bool, kept: str
) -> None:
    """A part of a text may have other tokens by itself."""

    async def run() -> Edge:
        edge, tokenizers = Edge(), Splitting()
        tokenizers.has_place = has_place
        edge.pipeline._tokenizers = edge.tokenizers = tokenizers  # type: ignore[assignment]
        request = RerankRequest(
            model=served_model(**PAIRS),
            queries=["who"],
            documents=[document, "a"],
            max_document_tokens=limit,
            truncation=truncation,
            context=RequestContext(),
        )
        await rank(edge.pipeline, request, Trace())
        return edge

    assert list(asyncio.run(run()).tokenizers.asked[-1][1]["pair_texts"]) == [kept, "a"]


def test_documents_that_are_embedded_are_cut_and_the_query_is_not() -> None:
    found, edge = ranked({}, queries=["a long one"])
    assert list(edge.tokenizers.asked[-1][0]) == ["a long one", "abc", "abc", "é", "ghi"]
    assert found.truncated.tolist() == [0, 0, 1, 0, 1]


def test_short_documents_cost_nothing() -> None:
    _, edge = ranked(PAIRS, documents=["a", "bc"])
    assert len(edge.tokenizers.asked) == 1


def test_many_characters_are_looked_at_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerank, "MAX_DETAIL_CHARS", 9)
    _, edge = ranked(PAIRS, documents=["abcd", "efgh", "ijkl", "m" * 100])
    assert [list(texts) for texts, _ in edge.tokenizers.asked[:-1:2]] == [["abcd", "efgh"], ["ijkl"], ["m" * 100]]
    assert list(edge.tokenizers.asked[-1][1]["pair_texts"]) == ["abc", "efg", "ijk", "mmm"]


@pytest.mark.parametrize(("truncation", "kept"), [(Truncation.RIGHT, "a" * 3), (Truncation.LEFT, "b" * 3)])
def test_of_a_long_document_only_what_can_matter_is_looked_at(truncation: Truncation, kept: str) -> None:
    document = "a" * LONG_TEXT_CHARS + "b" * LONG_TEXT_CHARS
    found, edge = ranked(PAIRS, documents=["x", document], truncation=truncation)
    shortened, details, *_, pairs = edge.tokenizers.asked
    assert shortened[1]["max_tokens"] == 3
    assert details[0] == [kept + kept[0]]
    assert list(pairs[1]["pair_texts"]) == ["x", kept]
    assert found.truncated.tolist() == [0, 1]


@pytest.mark.parametrize(("model", "named"), [(PAIRS, "documents[1]"), ({}, "documents[1]")])
def test_a_document_that_is_refused_is_named(model: dict[str, Any], named: str) -> None:
    async def run() -> None:
        edge = Edge()
        edge.tokenizers.error = TextRefused(TextRefusal.FAILED, 1)
        request = RerankRequest(
            model=served_model(**model),
            queries=["who"],
            documents=DOCUMENTS,
            max_document_tokens=3,
            context=RequestContext(),
        )
        await rank(edge.pipeline, request, Trace())

    with pytest.raises(NotTokenizable) as refused:
        asyncio.run(run())
    assert refused.value.param == named


@pytest.mark.parametrize(("is_left", "kept"), [(False, "a"), (True, "b")])
def test_a_character_of_several_tokens_is_not_split(is_left: bool, kept: str) -> None:
    text = "a🙂b"
    tokens = [Token(at, "", False, start, start + 1) for at, start in enumerate((0, 1, 1, 1, 2))]
    assert rerank._kept(text, tokens, 3, is_left=is_left) == kept
    assert rerank._kept(text, tokens, 5, is_left=is_left) == text


@pytest.mark.holds("Reranking")
def test_queries_of_pairs_are_cut_and_one_of_many_documents_only_once() -> None:
    found, edge = ranked(PAIRS, queries=["a query"], max_query_tokens=3)
    of_query, *_, (texts, how) = edge.tokenizers.asked
    assert of_query[0] == ["a query"]
    assert (list(texts), list(how["pair_texts"])) == (["a q"] * 4, ["abc", "abc", "é", "ghi"])
    assert found.truncated.tolist() == [1, 1, 1, 1]


def test_a_query_alone_is_cut() -> None:
    found, edge = ranked(PAIRS, queries=["a query"], max_query_tokens=3, max_document_tokens=None)
    assert list(edge.tokenizers.asked[-1][1]["pair_texts"]) == DOCUMENTS
    assert found.truncated.tolist() == [1, 1, 1, 1]


@pytest.mark.holds("Reranking")
def test_queries_that_are_embedded_are_cut() -> None:
    queries = ["long one", "b", "long one", "c"]
    found, edge = ranked({}, queries=queries, max_query_tokens=2)
    assert list(edge.tokenizers.asked[-1][0]) == ["lo", "b", "lo", "c", "abc", "abc", "é", "ghi"]
    assert found.truncated.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("model", [PAIRS, {}])
def test_a_query_that_is_refused_is_named(model: dict[str, Any]) -> None:
    async def run() -> None:
        edge = Edge()
        edge.tokenizers.error = TextRefused(TextRefusal.FAILED, 0)
        request = RerankRequest(
            model=served_model(**model),
            queries=["a long query"],
            documents=DOCUMENTS,
            max_query_tokens=3,
            context=RequestContext(),
        )
        await rank(edge.pipeline, request, Trace())

    with pytest.raises(NotTokenizable) as refused:
        asyncio.run(run())
    assert refused.value.param == ("documents[0]" if model else "query")  # of a pair the document stands for both
