"""Hugging Face's shapes at POST /: labels of a text and entities in it, as InferenceClient reads them."""

import json
from typing import Any

import numpy as np
import pytest
from huggingface_hub import TextClassificationOutputElement, TokenClassificationOutputElement

from engine.types import OutputKind
from tests.server.asking import RAW, ask, tei_error
from tests.server.edge import Called

LABELS: dict[str, Any] = {"task": "classify", "labels": ["no", "yes", "both"], "activation": "softmax", "num_labels": 3}
TAGS: dict[str, Any] = {"task": "token-classify", "labels": ["O", "B-PER", "I-PER"], "num_labels": 3}
RAW_SCORES = [[0.0, float(np.log(2)), 0.0]]


def classify(body: dict[str, Any], **others: Any) -> Called:
    return ask("/", body, OutputKind.LOGITS, **{"rows": RAW_SCORES, **LABELS, **others})


def entities(body: dict[str, Any]) -> Any:
    rows = np.array([[0, 9, 0], [0, 0, 9], [9, 0, 0], [0, 9, 0]], np.float32)
    called = ask("/", body, OutputKind.TOKEN_LOGITS, token_rows=rows, **TAGS)
    assert called.status == 200, called.body
    return json.loads(called.body)


@pytest.mark.holds("Hugging Face's shapes")
def test_labels_of_one_text_are_in_a_list_of_lists() -> None:
    called = classify({"inputs": "ab"})
    found = TextClassificationOutputElement.parse_obj_as_list(called.body)[0]

    assert [(each.label, round(each.score, 4)) for each in found] == [("yes", 0.5), ("no", 0.25), ("both", 0.25)]


@pytest.mark.holds("Hugging Face's shapes")
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"top_k": 1}, [("yes", 0.5)]),
        ({"function_to_apply": "none", "top_k": 2}, [("yes", np.log(2)), ("no", 0.0)]),
        ({"function_to_apply": "sigmoid", "top_k": 2}, [("yes", 2 / 3), ("no", 0.5)]),
        ({"function_to_apply": "softmax", "top_k": 1}, [("yes", 0.5)]),
    ],
)
def test_parameters(parameters: dict[str, Any], expected: list[tuple[str, float]]) -> None:
    (found,) = json.loads(classify({"inputs": "ab", "parameters": parameters}).body)
    assert [each["label"] for each in found] == [label for label, _ in expected]
    assert [each["score"] for each in found] == pytest.approx([score for _, score in expected])


@pytest.mark.holds("Hugging Face's shapes")
def test_what_has_teis_fields_gets_teis_shape() -> None:
    tei = json.loads(classify({"inputs": "ab", "raw_scores": True}).body)
    assert tei[0]["label"] == "yes"
    assert json.loads(classify({"inputs": ["ab"]}).body)[0]["label"] == "yes"  # a text alone, in TEI's way
    at_sagemaker = ask("/invocations", {"inputs": "ab"}, OutputKind.LOGITS, rows=RAW_SCORES, **LABELS)
    assert json.loads(at_sagemaker.body)[0]["label"] == "yes"
    assert classify({"inputs": "ab"}, headers=RAW).headers["x-embedline-shape"] == "1,3"


@pytest.mark.holds("Hugging Face's shapes")
def test_entities_of_one_text() -> None:
    (first, second) = entities({"inputs": "ab d", "parameters": {"aggregation_strategy": "simple"}})

    assert first == {"entity_group": "PER", "word": "ab", "start": 0, "end": 2, "score": pytest.approx(1, abs=1e-3)}
    assert (second["word"], second["start"], second["end"]) == ("d", 3, 4)
    assert entities({"inputs": "ab d"}) == [first, second]  # joined unless the body says otherwise
    assert entities({"inputs": ["ab d"], "parameters": {}}) == [[first, second]]
    (found, _) = TokenClassificationOutputElement.parse_obj_as_list([first, second])
    assert (found.entity_group, found.word) == ("PER", "ab")


@pytest.mark.holds("Hugging Face's shapes")
def test_tokens_alone() -> None:
    found = entities({"inputs": "ab d", "parameters": {"aggregation_strategy": "none", "ignore_labels": ["O"]}})

    assert [(each["entity"], each["index"], each["word"]) for each in found] == [
        ("B-PER", 0, "a"),
        ("I-PER", 1, "b"),
        ("B-PER", 3, "d"),
    ]


@pytest.mark.holds("Hugging Face's shapes")
@pytest.mark.parametrize(
    ("model", "parameters", "param"),
    [
        (LABELS, {"candidate_labels": ["a"]}, "parameters.candidate_labels"),
        (LABELS, {"function_to_apply": "tanh"}, "parameters.function_to_apply"),
        (LABELS, {"top_k": 0}, "parameters.top_k"),
        (LABELS, {"top_k": "x"}, "parameters.top_k"),
        (LABELS, {"aggregation_strategy": "simple"}, "parameters.aggregation_strategy"),
        (LABELS, {"x": "a" * 20_000}, "parameters"),
        (LABELS, [], "parameters"),
        (TAGS, {"aggregation_strategy": "best"}, "parameters.aggregation_strategy"),
        (TAGS, {"ignore_labels": []}, "parameters.ignore_labels"),
        (TAGS, {"stride": 4}, "parameters.stride"),
        (TAGS, {"function_to_apply": "none"}, "parameters.function_to_apply"),
    ],
)
def test_what_is_refused_is_named(model: dict[str, Any], parameters: Any, param: str) -> None:
    outputs = OutputKind.LOGITS if model is LABELS else OutputKind.TOKEN_LOGITS
    body = {"inputs": "ab", "parameters": parameters}

    def roomy(edge: Any) -> None:
        edge.app._shared.bodies.max_bytes = 100_000

    status, kind, message = tei_error(ask("/", body, outputs, before=roomy, **model))
    assert (status, kind) == (422, "Validation")
    assert message.startswith(param)
