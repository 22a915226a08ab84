"""POST /score and /v1/score: one query with every document, or each with its own, by every kind of model."""

import json
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from tests.server.asking import RAW, ask
from tests.server.edge import Called

PAIRS: dict[str, Any] = {"outputs": OutputKind.LOGITS, "task": "rerank", "labels": ["yes"], "activation": "sigmoid"}
EMBED: dict[str, Any] = {"outputs": OutputKind.POOLED, "task": "embed"}
LATE: dict[str, Any] = {"outputs": OutputKind.MULTI_VECTOR, "task": "late-interaction"}
NAMES = [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]


def score(body: dict[str, Any], model: dict[str, Any] | None = None, path: str = "/score", **others: Any) -> Called:
    return ask(path, body, **{**(EMBED if model is None else model), **others})


def scores(called: Called) -> list[float]:
    answer = json.loads(called.body)
    assert called.status == 200, answer
    assert [(item["index"], item["object"]) for item in answer["data"]] == [
        (at, "score") for at in range(len(answer["data"]))
    ]
    return [item["score"] for item in answer["data"]]


@pytest.mark.holds("vLLM's own routes")
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", NAMES)
def test_all_names_of_the_two_fields(path: str, names: tuple[str, str]) -> None:
    rows = [[1.0, 0.0], [0.6, 0.8]]
    called = score({names[0]: "a", names[1]: "b", "model": "x"}, path=path, rows=rows)
    answer = json.loads(called.body)

    assert scores(called) == [pytest.approx(0.6)]
    assert answer["id"] == f"score-{called.headers['x-request-id']}"
    assert (answer["object"], answer["model"]) == ("list", "the-model")
    assert isinstance(answer["created"], int)
    assert answer["usage"] == {"prompt_tokens": 2, "total_tokens": 2, "completion_tokens": 0, "truncated_inputs": 0}


@pytest.mark.holds("vLLM's own routes")
def test_embeddings_by_cosine() -> None:
    rows = np.array([[3, 4], [4, -3], [6, 8], [8, 6]], np.float32)

    one = score({"queries": "a", "documents": ["b", "c", "d"]}, rows=rows)
    each = score({"queries": ["a", "b"], "documents": ["c", "d"]}, rows=rows)

    assert scores(one) == pytest.approx([0, 1, 0.96])
    assert scores(each) == pytest.approx([1, 0.28])


@pytest.mark.holds("vLLM's own routes")
def test_cross_encoders_with_and_without_activation() -> None:
    """The stand-in's scores are lengths of pairs."""
    body = {"queries": ["a", "bc"], "documents": ["d", "efg"]}

    raw = score({**body, "use_activation": False}, PAIRS)
    assert scores(raw) == [2.0, 5.0]
    assert scores(score(body, PAIRS)) == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-5))])
    assert scores(score({"queries": "a", "documents": ["d", "efg"], "use_activation": False}, PAIRS)) == [2.0, 4.0]


@pytest.mark.holds("vLLM's own routes")
def test_late_interaction() -> None:
    rows = np.random.default_rng(3).standard_normal((1 + 2 + 3 + 2, 4), np.float32)
    first, second, third, fourth = np.split(rows, [1, 3, 6])
    best = [(document @ query.T).max(axis=0).sum() for query, document in ((first, third), (second, fourth))]

    each = score({"queries": ["a", "bc"], "documents": ["def", "gh"]}, LATE, token_rows=rows)
    one = score({"queries": "a", "documents": ["bc", "def", "gh"]}, LATE, token_rows=rows)

    assert scores(each) == pytest.approx(best, rel=1e-5)
    assert scores(one)[1] == pytest.approx(best[0], rel=1e-5)


@pytest.mark.holds("vLLM's own routes")
@pytest.mark.parametrize("path", ["/score", "/rerank"])
def test_queries_and_documents_have_limits_of_their_own(path: str) -> None:
    texts = {"queries": "abcd"} if path == "/score" else {"query": "abcd"}
    body = {**texts, "documents": ["efgh", "i"], "use_activation": False}

    def lengths(**fields: int) -> tuple[list[float], Any]:
        called = score({**body, **fields}, PAIRS, path=path)
        answer = json.loads(called.body)
        found = answer.get("data") or sorted(answer["results"], key=lambda result: result["index"])
        return [item.get("score", item.get("relevance_score")) for item in found], answer["usage"]["truncated_inputs"]

    assert lengths() == ([8, 5], 0)
    assert lengths(max_tokens_per_query=0, max_tokens_per_doc=16) == ([8, 5], 0)
    assert lengths(max_tokens_per_query=2) == ([6, 3], 2)
    assert lengths(max_tokens_per_query=2, max_tokens_per_doc=3) == ([5, 3], 2)
    assert lengths(max_tokens_per_doc=3) == ([7, 5], 1)


@pytest.mark.holds("vLLM's own routes")
@pytest.mark.parametrize("path", ["/score", "/rerank"])
@pytest.mark.parametrize(
    "fields",
    [
        {"instruction": "c"},
        {"chat_template_kwargs": {"instruction": "c"}},
        {"instruction": "c", "chat_template_kwargs": {"instruction": "c"}},
        {"instruction": "c", "chat_template_kwargs": {}},
    ],
    ids=str,
)
def test_an_instruction_may_come_as_the_templates(path: str, fields: dict[str, Any]) -> None:
    asked: list[str] = []
    texts = {"queries": "a"} if path == "/score" else {"query": "a"}
    called = score(
        {**texts, "documents": ["b"], **fields},
        {**PAIRS, "instruction": "the model's"},
        path=path,
        look=lambda edge: asked.extend(how["prompt"] for _, how in edge.tokenizers.asked),
    )
    assert (called.status, asked) == (200, ["c"]), called.body


def test_raw_bytes() -> None:
    called = score({"queries": "a", "documents": ["b", "c"]}, rows=[[1.0, 0], [1, 0], [0, 1]], headers=RAW)

    assert called.headers["x-embedline-shape"] == "2,1"
    assert np.frombuffer(called.body, "<f4").tolist() == [1.0, 0.0]


@pytest.mark.holds("vLLM's own routes")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "queries"),
        ({"queries": "a"}, "documents"),
        ({"queries": "a", "text_2": "b"}, "queries"),
        ({"queries": "a", "documents": "b", "items": "c"}, "documents"),
        ({"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "queries"),
        ({"queries": ["a", "b"], "documents": "c"}, "queries"),
        ({"queries": "", "documents": ["c"]}, "queries"),
        ({"queries": "a", "documents": []}, "documents"),
        ({"queries": "a", "documents": [[5]]}, "documents"),
        ({"queries": "a", "documents": ["b"] * 5}, "documents"),
        ({"queries": "a", "documents": "b", "cache_salt": ""}, "cache_salt"),
        ({"queries": "a", "documents": "b", "dimensions": 4}, "dimensions"),
        ({"queries": "a", "documents": "b", "instruction": "c"}, "instruction"),
        ({"queries": "a", "documents": "b", "chat_template_kwargs": {"instruction": "c"}}, "chat_template_kwargs"),
        (
            {"queries": "a", "documents": "b", "chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs",
        ),
        ({"queries": "a", "documents": "b", "max_tokens_per_query": -1}, "max_tokens_per_query"),
        ({"queries": "a", "documents": "b", "max_tokens_per_doc": -1}, "max_tokens_per_doc"),
        (
            {"queries": "a", "documents": "b", "instruction": "c", "chat_template_kwargs": {"instruction": "d"}},
            "chat_template_kwargs",
        ),
    ],
)
def test_what_is_refused_is_named_in_vllms_shape(body: dict[str, Any], param: str) -> None:
    called = score(body)
    error = called.error()

    assert (called.status, error["code"], error["type"], error["param"]) == (400, 400, "BadRequestError", param)
    assert json.loads(called.body)["detail"] == error["message"]


def test_a_classifier_of_several_labels_does_not_score_pairs() -> None:
    called = score({"queries": "a", "documents": "b"}, {**PAIRS, "task": "classify", "labels": ["a", "b"]})
    assert (called.status, "several labels" in called.error()["message"]) == (400, True)
