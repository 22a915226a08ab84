"""POST /classify and /v1/classify: vLLM's answer, and Infinity's where `raw_scores` is given."""

import json
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody, RequestError
from tests.server.asking import RAW, ask, refused_by
from tests.server.edge import Called, route_of

decode = route_of("/classify").decode

CLASSIFIER = {"task": "classify", "labels": ["no", "yes"], "activation": "softmax", "num_labels": 2}
ROWS = [[0.0, np.log(3)], [2.0, 2.0]]


def classify(body: dict[str, Any], path: str = "/classify", **others: Any) -> Called:
    return ask(path, body, OutputKind.LOGITS, rows=ROWS, **{**CLASSIFIER, **others})


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_vllms_answer(path: str) -> None:
    called = classify({"input": ["a", "bc"]}, path)
    answer = json.loads(called.body)

    assert called.headers["content-type"] == "application/json"
    assert answer["id"] == f"classify-{called.headers['x-request-id']}"
    assert (answer["object"], answer["model"]) == ("list", "the-model")
    assert isinstance(answer["created"], int)
    assert answer["data"] == [
        {"index": 0, "label": "yes", "probs": [0.25, pytest.approx(0.75)], "num_classes": 2},
        {"index": 1, "label": "no", "probs": [0.5, 0.5], "num_classes": 2},
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0, "truncated_inputs": 0}


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.parametrize(("raw", "expected"), [(False, 0.75), (True, np.log(3))])
def test_infinitys_answer(raw: bool, expected: float) -> None:
    answer = json.loads(classify({"input": ["a", "bc"], "raw_scores": raw}).body)

    assert answer["object"] == "classify"
    assert [each["label"] for each in answer["data"][0]] == ["yes", "no"]
    assert answer["data"][0][0]["score"] == pytest.approx(expected)
    assert {"id", "created", "model", "usage"} <= answer.keys()
    assert json.loads(classify({"input": ["a", "bc"], "raw_scores": raw}, "/v1/classify").body)["object"] == "list"


@pytest.mark.parametrize("fields", [{"use_activation": False}, {"raw_scores": True}])
def test_without_activation(fields: dict[str, bool]) -> None:
    answer = json.loads(classify({"input": ["a", "b"], **fields}, "/v1/classify").body)
    assert answer["data"][1]["probs"] == [2.0, 2.0]


@pytest.mark.holds("Scores")
@pytest.mark.parametrize(
    ("activation", "expected"), [("identity", [2.0, 2.0]), ("sigmoid", [0.880797] * 2), ("softmax", [0.5, 0.5])]
)
def test_the_activation_that_the_models_files_name(activation: str, expected: list[float]) -> None:
    answer = json.loads(classify({"input": ["a", "b"]}, "/v1/classify", activation=activation).body)
    assert answer["data"][1]["probs"] == pytest.approx(expected, abs=1e-6)


def test_raw_bytes() -> None:
    called = classify({"input": ["a", "b"], "use_activation": False}, headers=RAW)

    assert called.headers["x-embedline-shape"] == "2,2"
    assert np.array_equal(np.frombuffer(called.body, "<f4").reshape(2, 2), np.array(ROWS, np.float32))


def test_a_model_without_scores_says_what_it_is_for() -> None:
    error = ask("/classify", {"input": "a"}, OutputKind.SPARSE, task="sparse").error()
    assert (error["code"], error["message"][-16:]) == ("unsupported_task", "it is for sparse")


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({}, InvalidRequest, "input"),
        ({"input": []}, EmptyInput, "input"),
        ({"input": ["a", ""]}, EmptyInput, "input[1]"),
        ({"input": ["a"] * 5}, InvalidRequest, "input"),
        ({"input": {"text": "a"}}, InvalidRequest, "input"),
        ({"input": [{"image": "a"}]}, InvalidRequest, "input[0].image"),
        ({"messages": [{"role": "user", "content": 5}]}, InvalidRequest, "messages[0].content"),
        ({"input": "a", "messages": []}, InvalidRequest, "messages"),
        ({"input": "a", "use_activation": True, "raw_scores": False}, InvalidRequest, "raw_scores"),
        ({"input": "a", "raw_scores": None}, InvalidRequest, "raw_scores"),
        ({"input": "a", "labels": ["x", "y"]}, InvalidRequest, "labels"),
        ({"input": "a", "classifier_id": "x"}, InvalidRequest, "classifier_id"),
        (b'{"input":"a"', MalformedBody, None),
    ],
)
def test_what_is_refused_is_named(body: Any, kind: type[RequestError], param: str | None) -> None:
    assert refused_by(decode, body) == (kind, param)
