"""Voyage's route for chunks of documents: bodies, the shape of answers, and what is refused by name.

What the rows are is held in tests/server/requests/inputs/test_long_texts.py.
"""

import json
from typing import Any

import numpy as np
import pybase64
import pytest

from engine.types import OutputKind
from server.requests.work import Chunking
from tests.server.asking import RAW, ask
from tests.server.edge import Called, decoded, one_model
from tokenizer_pool.messages import Truncation

PATH = "/v1/contextualizedembeddings"
BOTH = OutputKind.POOLED | OutputKind.TOKENS
PROMPTS = {"prompts": {"query": "Q: ", "document": "D: "}}


def post(body: dict[str, Any], outputs: OutputKind = BOTH, **how: Any) -> Called:
    return ask(PATH, body, outputs, **how)


def nested(called: Called) -> list[list[Any]]:
    """The embeddings of each document, whose indices are checked."""
    answer = json.loads(called.body)
    assert called.status == 200, answer
    assert answer["object"] == "list"
    for at, document in enumerate(answer["data"]):
        assert (document["object"], document["index"]) == ("list", at)
        places = [(chunk["object"], chunk["index"]) for chunk in document["data"]]
        assert places == [("embedding", index) for index in range(len(places))]
    return [[chunk["embedding"] for chunk in document["data"]] for document in answer["data"]]


@pytest.mark.holds("Voyage's documents")
def test_each_document_is_a_list_of_its_chunks() -> None:
    called = post({"inputs": [["abc", "de"], ["f"]], "model": "voyage-context-3", "input_type": None})
    assert [[row[0] for row in rows] for rows in nested(called)] == [[5, 5], [1]]  # the length of the whole sequence
    answer = json.loads(called.body)
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6, "truncated_inputs": 0}
    assert answer["model"] == "the-model"


@pytest.mark.parametrize("dtype", ["float", "int8", "uint8", "binary", "ubinary"])
def test_base64_is_of_the_type_that_output_dtype_names(dtype: str) -> None:
    how = {"output_dtype": dtype, "output_dimension": 8}
    numbers = nested(post({"inputs": [["abc", "de"]], **how}))
    texts = nested(post({"inputs": [["abc", "de"]], **how, "encoding_format": "base64"}))
    kind = {"float": "<f4", "uint8": "u1", "ubinary": "u1"}.get(dtype, "i1")
    assert [np.frombuffer(pybase64.b64decode(text), kind).tolist() for text in texts[0]] == numbers[0]


def test_raw_rows_are_those_of_all_chunks() -> None:
    called = post({"inputs": [["abc", "de"], ["f"]]}, headers=RAW)
    assert called.headers["x-embedline-shape"] == "3,8"


@pytest.mark.holds("Voyage's documents")
@pytest.mark.parametrize(("input_type", "prompt"), [(None, ""), ("query", "Q: "), ("document", "D: ")])
def test_lists_of_one_text_are_embedded_as_any_text(input_type: str | None, prompt: str) -> None:
    """So queries need no rows of tokens."""
    models = one_model(outputs=OutputKind.POOLED, facts=PROMPTS)
    request = decoded(PATH, models=models, inputs=[["a"], ["b"]], input_type=input_type)
    assert (request.chunking, list(request.items), request.prompt) == (Chunking.NONE, ["a", "b"], prompt)
    assert (request.truncation, request.name_of(1)) == (Truncation.NONE, "inputs[1][0]")
    several = decoded(PATH, models=one_model(facts=PROMPTS), inputs=[["a"], ["b", "c"]], input_type=input_type)
    assert (several.chunking, several.document_sizes, several.prompt) == (Chunking.DOCUMENTS, [1, 2], prompt)


@pytest.mark.holds("Voyage's documents")
def test_queries_need_no_lists_of_their_own() -> None:
    queries: dict[str, Any] = {"inputs": ["ab", "c"], "input_type": "query"}
    lists = {**queries, "inputs": [["ab"], ["c"]]}
    assert nested(post(queries)) == nested(post(lists))
    request = decoded(PATH, models=one_model(facts=PROMPTS), **queries)
    assert (request.prompt, request.truncation, request.name_of(1)) == ("Q: ", Truncation.NONE, "inputs[1]")
    assert "send a list of chunks for each document" in post({"inputs": ["a"]}).error()["message"]


@pytest.mark.holds("Voyage's documents")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "inputs"),
        ({"input": [["a"]]}, "inputs"),
        ({"inputs": "a"}, "inputs"),
        ({"inputs": ["a"]}, "inputs[0]"),
        ({"inputs": []}, "inputs"),
        ({"inputs": [[]]}, "inputs[0]"),
        ({"inputs": [["a"], []]}, "inputs[1]"),
        ({"inputs": [["a", ""]]}, "inputs[0][1]"),
        ({"inputs": [["a", 5]]}, "inputs[0][1]"),
        ({"inputs": [[5, 6]]}, "inputs[0][0]"),
        ({"inputs": [["a", "b"], ["c", "d", "e"]]}, "inputs"),
        ({"inputs": [["a"], ["x" * 10, "y" * 10]]}, "inputs[1]"),
        ({"inputs": ["a"], "input_type": "document"}, "inputs[0]"),
        ({"inputs": ["a", ""], "input_type": "query"}, "inputs[1]"),
        ({"inputs": ["a", ["b"]], "input_type": "query"}, "inputs[1]"),
        ({"inputs": ["a"] * 5, "input_type": "query"}, "inputs"),
        ({"inputs": [["a"]], "input_type": "passages"}, "input_type"),
        ({"inputs": [["a"]], "output_dimension": 9}, "output_dimension"),
        ({"inputs": [["a"]], "output_dtype": "int4"}, "output_dtype"),
        ({"inputs": [["a"]], "truncation": True}, "truncation"),
        ({"inputs": [["a"]], "enable_auto_chunking": True}, "enable_auto_chunking"),
        ({"inputs": [["a"]], "chunk_size": 5}, "chunk_size"),
        ({"inputs": [["a"]], "late_chunking": True}, "late_chunking"),
    ],
    ids=str,
)
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    called = post(body)
    assert (called.status, called.error()["param"]) == (400, param)
    assert json.loads(called.body)["detail"] == called.error()["message"]  # Voyage's SDK shows it


def test_a_model_without_rows_of_tokens_takes_queries_alone() -> None:
    assert post({"inputs": [["a"], ["b"]]}, OutputKind.POOLED).status == 200
    called = post({"inputs": [["a", "b"]]}, OutputKind.POOLED)
    assert (called.status, called.error()["param"]) == (400, "inputs")
