"""What text-embeddings-inference's own tests, examples and router say of its answers, row by row, of ours.

They are in router/tests, router/src/http, the README and the quick tour there.

Left out, with the reasons in docs/api/tei.md: what differs on purpose.
"""

import json
from typing import Any

import pytest

from tests.server.asking import ask
from tests.server.dialects.tei.peer_checks import (
    CLASSIFY,
    CLASSIFY_TWO,
    EMBED,
    RANK,
    RERANK,
    SIMILAR,
    SPARSE,
    Check,
    equal_rows,
    items,
    numbers,
    openai,
    predicted,
    predictions,
    ranks,
    rows,
    sparse,
    token_rows,
    tokens,
)

IDS, MORE_IDS = [1, 5, 2], [3, 4, 5]
TOUR = {"input": "abc", "model": "text-embeddings-inference", "encoding_format": "float"}
LENGTH = 8**-0.5  # of each number in a row of eight equal ones

Row = tuple[str, dict[str, Any], dict[str, Any], Check]


def inputs_of(given: Any, num_items: int) -> list[Row]:
    """The forms of `inputs`, alike on three routes. Each item has three tokens."""
    return [
        ("/embed", {"inputs": given}, EMBED, rows(num_items)),
        ("/embed_all", {"inputs": given}, EMBED, token_rows(*[3] * num_items)),
        ("/embed_sparse", {"inputs": given}, SPARSE, sparse(*[3.0] * num_items)),
    ]


def with_field(name: str, value: Any) -> list[Row]:
    """A field that all routes take which compute."""
    return [
        ("/embed", {"inputs": "abc", name: value}, EMBED, rows(1)),
        ("/embed_all", {"inputs": "abc", name: value}, EMBED, token_rows(3)),
        ("/embed_sparse", {"inputs": "abc", name: value}, SPARSE, sparse(3.0)),
        ("/predict", {"inputs": "abc", name: value}, CLASSIFY, predictions),
        ("/rerank", {**RANK, name: value}, RERANK, ranks(1, 2, 0)),
        ("/similarity", {"inputs": SIMILAR, "parameters": {name: value}}, EMBED, numbers(1, 1)),
    ]


def sagemaker(path: str) -> list[Row]:
    """The route is by what the model is for."""
    return [
        (path, {"inputs": ["abc"]}, EMBED, rows(1)),
        (path, {"inputs": SIMILAR}, EMBED, numbers(1, 1)),
        (path, {"inputs": "abc"}, SPARSE, sparse(3.0)),
        (path, {"inputs": [["abc"]]}, CLASSIFY, items(1, predictions)),
        (path, RANK, RERANK, ranks(1, 2, 0)),
    ]


def openai_inputs(path: str, encoding: str, kind: type) -> list[Row]:
    """Its OpenAI route."""
    return [
        (path, {"input": "abc", "encoding_format": encoding}, EMBED, openai(1, kind)),
        (path, {"input": ["abc", "def"], "encoding_format": encoding}, EMBED, openai(2, kind)),
        (path, {"input": IDS, "encoding_format": encoding}, EMBED, openai(1, kind)),
        (path, {"input": [IDS, MORE_IDS], "encoding_format": encoding}, EMBED, openai(2, kind)),
        (path, {"input": ["abc", IDS], "encoding_format": encoding}, EMBED, openai(2, kind)),
    ]


ROWS: list[Row] = [
    # router/tests
    ("/embed", {"inputs": "test", "dimensions": 4}, EMBED, rows(1, width=4)),
    ("/embed", {"inputs": ["test"] * 3, "dimensions": 4}, EMBED, equal_rows),
    ("/predict", {"inputs": "test"}, CLASSIFY, predictions),
    ("/predict", {"inputs": [["test"]] * 2}, CLASSIFY_TWO, items(2, predictions)),
    ("/rerank", {**RANK, "return_text": True}, RERANK, ranks(1, 2, 0, texts=["defg", "hi", "c"])),
    # the README and the tour
    ("/embed", {"inputs": "What is Deep Learning?"}, EMBED, rows(1)),
    ("/embed", {"inputs": ["Today is a nice day", "I like you"]}, EMBED, rows(2)),
    ("/v1/embeddings", TOUR, EMBED, openai(1, list, width=8)),
    ("/rerank", RANK, RERANK, ranks(1, 2, 0)),
    ("/rerank", {**RANK, "raw_scores": False}, RERANK, ranks(1, 2, 0)),
    ("/predict", {"inputs": "I like you."}, CLASSIFY, predictions),
    ("/predict", {"inputs": [["I like you."], ["I hate pineapples"]]}, CLASSIFY_TWO, items(2, predictions)),
    ("/embed_sparse", {"inputs": "I like you."}, SPARSE, sparse(11.0)),
    # router/src/http
    *inputs_of("abc", 1),
    *inputs_of(["abc"], 1),
    *inputs_of(IDS, 1),
    *inputs_of([IDS, MORE_IDS], 2),
    *inputs_of(["abc", IDS], 2),
    *with_field("truncate", None),
    *with_field("truncate", True),
    *with_field("truncate", False),
    *with_field("truncation_direction", "left"),
    *with_field("truncation_direction", "Left"),
    *with_field("truncation_direction", "right"),
    *with_field("truncation_direction", "Right"),
    *with_field("a_field_of_nobody", 5),
    ("/embed", {"inputs": "abc", "normalize": False}, EMBED, lambda answer: answer == [[3.0] * 8]),
    ("/embed", {"inputs": "abc", "normalize": True}, EMBED, lambda answer: numbers(*[LENGTH] * 8)(answer[0])),
    ("/embed", {"inputs": "abc"}, EMBED, lambda answer: numbers(*[LENGTH] * 8)(answer[0])),
    ("/embed", {"inputs": "abc", "dimensions": None, "prompt_name": None}, EMBED, rows(1)),
    ("/embed", {"inputs": "abc", "dimensions": 4}, EMBED, lambda answer: numbers(*[0.5] * 4)(answer[0])),
    ("/embed", {"inputs": "abc", "prompt_name": "query"}, EMBED, rows(1)),
    ("/embed_all", {"inputs": "abc", "prompt_name": "query"}, EMBED, token_rows(3)),
    ("/embed_sparse", {"inputs": "abc", "prompt_name": "query"}, SPARSE, sparse(3.0)),
    ("/embed_all", {"inputs": "abc"}, EMBED, lambda answer: answer == [[[3.0] * 8] * 3]),
    ("/predict", {"inputs": ["ab"]}, CLASSIFY, predictions),
    ("/predict", {"inputs": ["ab", "c"]}, CLASSIFY, predictions),
    ("/predict", {"inputs": ["", "c"]}, CLASSIFY, predictions),
    ("/predict", {"inputs": [["ab", "c"]]}, CLASSIFY, items(1, predictions)),
    ("/predict", {"inputs": [["ab"], ["a", "b"]]}, CLASSIFY_TWO, items(2, predictions)),
    ("/predict", {"inputs": "ab"}, RERANK, lambda answer: [each["label"] for each in answer] == ["LABEL_0"]),
    (
        "/predict",
        {"inputs": "ab", "raw_scores": True},
        CLASSIFY,
        lambda answer: [each["score"] for each in answer] == [3.0, 1.0, 0.5],
    ),
    ("/rerank", {**RANK, "raw_scores": True}, RERANK, lambda answer: [one["score"] for one in answer] == [6, 4, 3]),
    ("/rerank", {**RANK, "raw_scores": False}, RERANK, lambda answer: all(0 < one["score"] < 1 for one in answer)),
    ("/rerank", {**RANK, "return_text": False}, RERANK, ranks(1, 2, 0)),
    ("/rerank", {"query": "", "texts": ["a"]}, RERANK, ranks(0)),
    ("/rerank", {"query": "a", "texts": ["", "b"]}, RERANK, ranks(1, 0)),
    ("/similarity", {"inputs": SIMILAR}, EMBED, numbers(1, 1)),
    ("/similarity", {"inputs": SIMILAR, "parameters": None}, EMBED, numbers(1, 1)),
    ("/similarity", {"inputs": SIMILAR, "parameters": {}}, EMBED, numbers(1, 1)),
    ("/similarity", {"inputs": SIMILAR, "parameters": {"prompt_name": "query"}}, EMBED, numbers(1, 1)),
    ("/tokenize", {"inputs": "abc"}, EMBED, tokens(3)),
    ("/tokenize", {"inputs": ["abc", "d"]}, EMBED, tokens(3, 1)),
    ("/tokenize", {"inputs": "abc", "add_special_tokens": False, "prompt_name": None}, EMBED, tokens(3)),
    ("/tokenize", {"inputs": "abc"}, RERANK, tokens(3)),
    ("/decode", {"ids": [5, 6]}, EMBED, lambda answer: answer == ["5 6"]),
    ("/decode", {"ids": [[5, 6], [7]]}, EMBED, lambda answer: answer == ["5 6", "7"]),
    ("/decode", {"ids": [5, 6], "skip_special_tokens": False}, CLASSIFY, lambda answer: answer == ["5 6"]),
    *openai_inputs("/v1/embeddings", "float", list),
    *openai_inputs("/v1/embeddings", "base64", str),
    *openai_inputs("/embeddings", "float", list),
    *openai_inputs("/embeddings", "base64", str),
    ("/v1/embeddings", {"input": "abc", "user": "somebody", "dimensions": None}, EMBED, openai(1, list, width=8)),
    ("/v1/embeddings", {"input": "abc", "dimensions": 4}, EMBED, openai(1, list, width=4)),
    *sagemaker("/"),
    *sagemaker("/invocations"),
    ("/invocations", {"inputs": "abc"}, CLASSIFY, predictions),
    ("/vertex", {"instances": [{"inputs": "abc"}] * 2}, EMBED, predicted(2, rows(1))),
    ("/vertex", {"instances": [{"inputs": "abc"}]}, SPARSE, predicted(1, sparse(3.0))),
    ("/vertex", {"instances": [{"inputs": "abc"}]}, CLASSIFY, predicted(1, predictions)),
    ("/vertex", {"instances": [RANK]}, RERANK, predicted(1, ranks(1, 2, 0))),
    (
        "/vertex",
        {"instances": [{"inputs": "abc"}]},
        RERANK,
        predicted(1, lambda answer: [each["label"] for each in answer] == ["LABEL_0"]),
    ),
]


@pytest.mark.holds("TEI's routes")
@pytest.mark.parametrize(("path", "body", "model", "check"), ROWS)
def test_it_answers_as_tei_does(path: str, body: dict[str, Any], model: dict[str, Any], check: Check) -> None:
    called = ask(path, body, **model)

    assert called.status == 200, called.body
    assert called.headers["content-type"] == "application/json"
    assert check(json.loads(called.body)), called.body
