"""POST /predict: texts, pairs and lists of them, scored and sorted as TEI does it."""

import json
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from server.dialects.route import RequestOptions
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody, RequestError
from tests.server.asking import RAW, ask, decoded_by, refused_by, tei_error
from tests.server.edge import Called, Edge, one_model, route_of
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from wire.parts import Part
from wire.vocabulary import RequestClass

decode_predict = route_of("/predict").decode

CLASSIFIER = {"task": "classify", "labels": ["bad", "so-so", "good"], "activation": "softmax"}
ROWS = [[0.0, 3.0, 1.0], [5.0, -5.0, 5.0]]
OPTIONS = RequestOptions(request_class=RequestClass.BULK, deadline=12.5)


def predict(body: dict[str, Any], rows: Any = ROWS, **others: Any) -> Called:
    fields: dict[str, Any] = {**CLASSIFIER, "num_labels": 3, **others}
    return ask("/predict", body, OutputKind.LOGITS, rows=rows, **fields)


def softmax(row: list[float]) -> list[float]:
    powers = np.exp(row)
    return list(powers / powers.sum())


def scores(predictions: list[dict[str, Any]]) -> dict[str, float]:
    return {each["label"]: each["score"] for each in predictions}


# answers


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
def test_labels_sorted_by_score() -> None:
    (first, second) = json.loads(predict({"inputs": [["a"], ["b"]]}).body)

    assert [each["label"] for each in first] == ["so-so", "good", "bad"]
    assert [each["score"] for each in first] == sorted((each["score"] for each in first), reverse=True)
    assert list(scores(first)[label] for label in CLASSIFIER["labels"]) == pytest.approx(softmax(ROWS[0]), rel=1e-6)
    assert [each["label"] for each in second] == ["bad", "good", "so-so"]  # equal scores stay in the model's order


@pytest.mark.holds("Scores")
@pytest.mark.parametrize("activation", ["identity", "sigmoid", "softmax"])
def test_softmax_whatever_the_models_files_name(activation: str) -> None:
    found = scores(json.loads(predict({"inputs": "a"}, rows=[[-200, 0, 2]], activation=activation).body))
    assert [found[label] for label in CLASSIFIER["labels"]] == pytest.approx([0.0, 0.119203, 0.880797], abs=1e-6)


@pytest.mark.holds("Scores")
@pytest.mark.parametrize("activation", ["identity", "sigmoid", "softmax"])
def test_a_reranker_has_one_label_with_sigmoid(activation: str) -> None:
    model = {"task": "rerank", "labels": [], "num_labels": 1, "activation": activation}
    found = json.loads(predict({"inputs": [["a", "b"]]}, rows=[[2.0]], **model).body)

    assert found == [[{"label": "LABEL_0", "score": pytest.approx(0.880797, abs=1e-6)}]]


def test_one_side_of_a_pair_may_be_empty() -> None:
    def look(edge: Edge) -> None:
        (submission,) = edge.managers.submitted
        assert submission.seqlens == [1, 2, 1]
        assert [list(how.get("pair_texts") or ()) for _, how in edge.tokenizers.asked] == [[], ["b", ""]]

    rows = [[number, 0, 0] for number in range(3)]
    body = {"inputs": [["", "b"], ["aa", ""], ["c"]], "raw_scores": True}
    found = json.loads(predict(body, rows=rows, look=look).body)
    assert [scores(each)["bad"] for each in found] == [0, 1, 2]


def test_texts_and_pairs_in_one_request_keep_their_places() -> None:
    def look(edge: Edge) -> None:
        (submission,) = edge.managers.submitted
        assert submission.seqlens == [4, 1, 17, 3]
        assert np.frombuffer(submission.token_ids, np.int32).tolist()[:5] == [97, 98, 99, 0, 97]
        types = np.frombuffer(submission.parts[Part.TOKEN_TYPE_IDS], np.int32).tolist()
        assert types == [0, 1, 1, 1, 0, *[0] * 17, 0, 0, 1]

    rows = [[number, 0, 0] for number in range(4)]
    body = {"inputs": [["a", "bcd"], ["a"], ["b" * 17], ["cd", "e"]], "raw_scores": True}
    called = predict(body, rows=rows, look=look)
    assert [scores(each)["bad"] for each in json.loads(called.body)] == [0, 1, 2, 3]
    assert called.headers["x-embedline-truncated-inputs"] == "1"


@pytest.mark.parametrize(("refused", "named"), [(0, "inputs[1]"), (1, "inputs[2]"), (-1, "inputs")])
def test_a_text_among_pairs_is_refused_with_its_place(refused: int, named: str) -> None:
    def before(edge: Edge) -> None:
        edge.tokenizers.error = TextRefused(TextRefusal.FAILED, refused)

    called = predict({"inputs": [["a", "b"], ["c"], ["d"]]}, before=before)
    assert tei_error(called) == (422, "Tokenizer", f"{named} can't be tokenized")


def test_a_generative_reranker_takes_pairs_alone() -> None:
    def look(edge: Edge) -> None:
        assert edge.tokenizers.asked[0][1]["prompt"] == "Judge."

    model = {"task": "rerank", "labels": [], "num_labels": 1, "instruction": "Judge.", "rows": [[2.0]]}
    assert predict({"inputs": ["a", "b"]}, look=look, **model).status == 200
    for inputs in ("a", [["a", "b"], ["c"]]):
        status, kind, message = tei_error(predict({"inputs": inputs}, **model))
        assert (status, kind) == (422, "Validation")
        assert message.startswith("inputs must be pairs")


def test_raw_bytes_are_in_the_models_order() -> None:
    called = predict({"inputs": [["a"], ["b"]], "raw_scores": True}, headers=RAW)

    assert called.headers["content-type"] == "application/octet-stream"
    assert called.headers["x-embedline-shape"] == "2,3"
    assert (called.headers["x-embedline-dtype"], called.headers["x-embedline-prompt-tokens"]) == ("float32", "2")
    assert np.array_equal(np.frombuffer(called.body, "<f4").reshape(2, 3), ROWS)


# requests


def decoded(body: dict[str, Any]) -> Any:
    return decoded_by(decode_predict, body, OPTIONS, models=one_model(default_prompt="D: "))


def test_what_is_asked_for() -> None:
    request = decoded({"inputs": [["a"], ["b"]], "truncation_direction": "Left", "truncate": True, "other": 1})

    assert (request.texts, request.pair_texts, request.is_single) == (["a", "b"], (), False)
    assert (request.outputs, request.raw_scores, request.truncation) == (OutputKind.LOGITS, False, Truncation.LEFT)
    assert (request.request_class, request.deadline, request.prompt) == (RequestClass.BULK, 12.5, "D: ")
    assert decoded({"inputs": ["a", "b"]}).pair_texts == ["b"]
    assert decoded({"inputs": "a", "truncate": False, "raw_scores": None}).truncation is Truncation.NONE


def test_brackets_and_quotes_in_texts_are_text() -> None:
    texts = ['[["', '\\"', "\\", ']],["']
    assert decoded({"inputs": [[text] for text in texts]}).texts == texts
    assert decoded({"inputs": ["[[[", "\\\\"]}).pair_texts == ["\\\\"]


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({"inputs": ""}, EmptyInput, "inputs"),
        ({"inputs": []}, EmptyInput, "inputs"),
        ({"inputs": ["", ""]}, EmptyInput, "inputs"),
        ({"inputs": [""]}, EmptyInput, "inputs"),
        ({"inputs": [["a"], [""]]}, EmptyInput, "inputs[1]"),
        ({"inputs": ["a", "b", "c"]}, InvalidRequest, "inputs"),
        ({"inputs": ["a"] * 99}, InvalidRequest, "inputs"),
        ({"inputs": ["a", ["b"]]}, InvalidRequest, "inputs[1]"),
        ({"inputs": [["a"], "b"]}, InvalidRequest, "inputs[1]"),
        ({"inputs": [["a"], []]}, InvalidRequest, "inputs[1]"),
        ({"inputs": [[]]}, InvalidRequest, "inputs[0]"),
        ({"inputs": [["a", "b", "c"]]}, InvalidRequest, "inputs[0]"),
        ({"inputs": [["a"], ["", ""]]}, EmptyInput, "inputs[1]"),
        ({"inputs": [["a"]] * 5}, InvalidRequest, "inputs"),
        ({"inputs": [["a", "b"]] * 5}, InvalidRequest, "inputs"),
        ({"inputs": [[5]]}, InvalidRequest, "inputs[0][0]"),
        ({"inputs": [5]}, InvalidRequest, "inputs"),
        ({"inputs": {"a": "b"}}, InvalidRequest, "inputs"),
        ({"inputs": None}, InvalidRequest, "inputs"),
        ({}, InvalidRequest, "inputs"),
        ({"inputs": "a", "raw_scores": "yes"}, InvalidRequest, "raw_scores"),
        ({"inputs": "a", "truncation_direction": "up"}, InvalidRequest, "truncation_direction"),
        (b'{"inputs":[["a"', MalformedBody, None),
        (b'{"inputs":' + b"[" * 9000, MalformedBody, None),
        (b'{"inputs":[' + b"[]," * 3000 + b"[]]}", InvalidRequest, "inputs[0]"),
    ],
)
def test_what_is_refused_is_named(body: Any, kind: type[RequestError], param: str | None) -> None:
    assert refused_by(decode_predict, body) == (kind, param)
