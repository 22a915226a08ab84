"""Weaviate's body of POST /rerank: documents with their scores in the order of the request, or one `property`."""

import json
from typing import Any

import pytest

from tests.server.dialects.rerank.rerank_requests import DOCUMENTS, post


def answer(body: Any) -> Any:
    called = post("/rerank", body)
    assert called.status == 200, called.body
    return json.loads(called.body)


@pytest.mark.holds("Weaviate's routes")
def test_documents_keep_their_order() -> None:
    content = answer({"query": "q", "documents": DOCUMENTS, "property": ""})

    assert [item["document"] for item in content["scores"]] == DOCUMENTS
    scores = [item["score"] for item in content["scores"]]
    assert scores[2] > scores[0] > scores[1] == scores[3]
    assert (content["query"], content["property"], content["score"]) == ("q", None, None)


@pytest.mark.holds("Weaviate's routes")
@pytest.mark.parametrize("body", [{}, {"documents": None}], ids=str)
def test_one_property(body: dict[str, Any]) -> None:
    several = answer({"query": "q", "documents": DOCUMENTS, "property": ""})

    content = answer({"query": "q", "property": DOCUMENTS[0], **body})

    assert content == {"query": "q", "scores": None, "property": "aa", "score": several["scores"][0]["score"]}


@pytest.mark.holds("Weaviate's routes")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"property": ""}, "documents must not be empty, or property must have a text"),
        ({"property": "", "documents": []}, "documents must not be empty"),
        ({"property": "a", "documents": ["b"]}, "property can't be given with documents"),
    ],
    ids=str,
)
def test_refusals(body: dict[str, Any], message: str) -> None:
    called = post("/rerank", {"query": "q", **body})
    assert (called.status, json.loads(called.body)) == (400, {"error": message})


def test_without_property_it_is_another_familys() -> None:
    assert "results" in answer({"query": "q", "documents": DOCUMENTS})
