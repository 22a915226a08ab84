"""POST /predict_tokens: labels of each token or of spans, for the very ids that the engine was given."""

import json
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from server.dialects.route import RequestOptions
from server.dialects.row_answers import Container
from server.requests.classify import Aggregation, fitting
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody, RequestError
from tests.server.asking import RAW, ask, decoded_by, refused_by, tei_error
from tests.server.edge import Called, Edge, route_of
from tokenizer_pool.messages import Truncation
from tokenizer_pool.tasks import Token

decode_predict_tokens = route_of("/predict_tokens").decode

LABELS = ["O", "B-PER", "I-PER"]
O, B, I = np.log([[8, 1, 1], [1, 8, 1], [1, 1, 8]]).tolist()  # noqa: E741 - as labels of tokens are called
MODEL = {"task": "token-classify", "labels": LABELS, "num_labels": 3}


def predict(body: dict[str, Any], token_rows: Any, **others: Any) -> Called:
    return ask("/predict_tokens", body, OutputKind.TOKEN_LOGITS, token_rows=token_rows, **{**MODEL, **others})


# answers; the stand-in's tokens are single characters


def test_each_token_with_its_best_label() -> None:
    answer = json.loads(predict({"inputs": [["ab"], ["c"]]}, [O, B, I]).body)

    score = pytest.approx(0.8)
    assert answer == [
        [
            {"token": "a", "token_id": 97, "start": 0, "end": 1, "results": {"O": score}},
            {"token": "b", "token_id": 98, "start": 1, "end": 2, "results": {"B-PER": score}},
        ],
        [{"token": "c", "token_id": 99, "start": 0, "end": 1, "results": {"I-PER": score}}],
    ]


@pytest.mark.parametrize("inputs", ["ab", ["ab"], [["ab"]]])
def test_the_answer_is_a_list_for_each_text(inputs: Any) -> None:
    assert [len(each) for each in json.loads(predict({"inputs": inputs}, [O, B]).body)] == [2]


def test_several_texts_are_no_pair() -> None:
    assert [len(each) for each in json.loads(predict({"inputs": ["ab", "c"]}, [O, B, I]).body)] == [2, 1]


def test_raw_scores_of_every_label() -> None:
    ((token,),) = json.loads(predict({"inputs": "a", "raw_scores": True}, [[-1.5, 2.25, 30.0]]).body)
    assert token["results"] == {"O": -1.5, "B-PER": 2.25, "I-PER": 30.0}


def test_spans_are_cut_out_of_the_text() -> None:
    body = {"inputs": ["Ann x", "b"], "aggregation_strategy": "simple"}
    answer = json.loads(predict(body, [B, I, I, O, O, B]).body)

    score = pytest.approx(0.8)
    assert answer == [
        [{"token": "Ann", "token_id": 0, "start": 0, "end": 3, "results": {"PER": score}}],
        [{"token": "b", "token_id": 0, "start": 0, "end": 1, "results": {"PER": score}}],
    ]


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
def test_the_ids_of_the_tokens_go_to_the_engine() -> None:
    def look(edge: Edge) -> None:
        (submission,) = edge.managers.submitted
        assert submission.seqlens == [2, 1]
        assert np.frombuffer(submission.token_ids, np.int32).tolist() == [97, 98, 99]

    assert predict({"inputs": ["ab", "c"]}, [O, B, I], look=look).status == 200


@pytest.mark.parametrize(("direction", "place"), [("right", 0), ("left", 84)])
def test_a_long_text_is_cut_and_places_are_those_of_the_whole(direction: str, place: int) -> None:
    body = {"inputs": ["x", "y" * 100], "truncation_direction": direction}
    called = predict(body, [O] * 17)

    assert [(each["start"], each["end"]) for each in json.loads(called.body)[1][:2]] == [
        (place, place + 1),
        (place + 1, place + 2),
    ]
    assert called.headers["x-embedline-truncated-inputs"] == "1"
    assert called.headers["x-compute-tokens"] == "17"


def test_a_text_that_is_shortened_before_has_the_places_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenizer_pool.shortening.LONG_TEXT_CHARS", 4000)
    num_characters = 4007
    body = {"inputs": "y" * num_characters, "truncation_direction": "left"}
    called = predict(body, [O] * 16)

    assert json.loads(called.body)[0][-1]["end"] == num_characters
    assert called.headers["x-embedline-truncated-inputs"] == "1"
    assert called.headers["x-compute-characters"] == str(num_characters)


def test_a_long_text_is_refused_where_truncation_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenizer_pool.shortening.LONG_TEXT_CHARS", 4000)
    for length in (17, 9000):  # the second is shortened before
        refused = predict({"inputs": ["x", "y" * length], "truncate": False}, [O])
        expected = "inputs[1] is longer than 16 tokens and truncation is off"
        assert tei_error(refused) == (422, "Validation", expected)


def test_raw_bytes_are_ragged() -> None:
    called = predict({"inputs": ["ab", "c"], "raw_scores": True}, [O, B, I], headers=RAW)

    assert (called.headers["x-embedline-shape"], called.headers["x-embedline-offsets"]) == ("3,3", "3")
    assert np.frombuffer(called.body, "<u4", 3).tolist() == [0, 2, 3]
    assert np.allclose(np.frombuffer(called.body, "<f4", offset=12).reshape(3, 3), [O, B, I])


def test_headers() -> None:
    headers = predict({"inputs": ["ab", "c"]}, [O, B, I]).headers
    assert (headers["x-compute-characters"], headers["x-compute-tokens"]) == ("3", "3")
    assert headers["x-tokenization-time"].isdigit()


def test_a_model_without_labels_of_tokens_says_what_it_is_for() -> None:
    status, kind, message = tei_error(ask("/predict_tokens", {"inputs": "a"}, OutputKind.POOLED, task="embed"))
    assert (status, kind) == (424, "Backend")
    assert message.endswith("it is for embed")


# what is cut


def test_special_tokens_stay_where_a_text_is_cut() -> None:
    first, last = Token(1, "[CLS]", True, None, None), Token(2, "[SEP]", True, None, None)
    inner = [Token(10 + at, "x", False, at, at + 1) for at in range(6)]
    tokens = [first, *inner, last]

    assert fitting(tokens, 5, Truncation.RIGHT) == [first, *inner[:3], last]
    assert fitting(tokens, 5, Truncation.LEFT) == [first, *inner[3:], last]
    assert fitting(tokens, 8, Truncation.RIGHT) == fitting(tokens, 5, Truncation.NONE) == tokens


# requests


def test_what_is_asked_for() -> None:
    request = decoded_by(decode_predict_tokens, {"inputs": [["a"], ["b"]], "truncation_direction": "Left", "other": 1})

    assert (request.texts, request.truncation) == (["a", "b"], Truncation.LEFT)
    assert (request.aggregation, request.raw_scores) == (Aggregation.NONE, False)
    assert (
        decoded_by(decode_predict_tokens, {"inputs": "a", "aggregation_strategy": "max"}).aggregation is Aggregation.MAX
    )


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({}, InvalidRequest, "inputs"),
        ({"inputs": []}, EmptyInput, "inputs"),
        ({"inputs": ["a", ""]}, EmptyInput, "inputs[1]"),
        ({"inputs": [["a", "b"]]}, InvalidRequest, "inputs[0]"),
        ({"inputs": [["a"], []]}, InvalidRequest, "inputs[1]"),
        ({"inputs": ["a"] * 5}, InvalidRequest, "inputs"),
        ({"inputs": [["a"]] * 5}, InvalidRequest, "inputs"),
        ({"inputs": [5]}, InvalidRequest, "inputs"),
        ({"inputs": "a", "aggregation_strategy": "mean"}, InvalidRequest, "aggregation_strategy"),
        ({"inputs": "a", "aggregation_strategy": "max", "raw_scores": True}, InvalidRequest, "aggregation_strategy"),
        (b'{"inputs":[["a"', MalformedBody, None),
    ],
)
def test_what_is_refused_is_named(body: Any, kind: type[RequestError], param: str | None) -> None:
    assert refused_by(decode_predict_tokens, body) == (kind, param)


def test_spans_have_no_raw_bytes() -> None:
    body, raw = {"inputs": "a", "aggregation_strategy": "max"}, RequestOptions(accepts=Container.RAW)
    with pytest.raises(InvalidRequest, match="aggregation_strategy must be none"):
        decoded_by(decode_predict_tokens, body, raw)
