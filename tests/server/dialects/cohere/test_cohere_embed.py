"""Cohere's /v1/embed and /v2/embed: bodies and answers as its SDK sends and reads them, and its errors."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from server.dialects.cohere import ROUTES
from server.requests.work import EmbedRequest
from tests.server.asking import RAW
from tests.server.edge import Called, answered, new_call, one_model
from wire.vocabulary import RequestClass

TEXTS = ["one", "three"]
BODY = {"texts": TEXTS, "model": "embed-v4.0", "input_type": "search_document"}
PATHS = ("/v1/embed", "/v2/embed")
ROWS = np.array([[0.5, -1.0, 0.25, 0.0, 1.0, -0.5, -0.25, 0.125], [1, 1, 1, 1, -1, -1, -1, -1]], np.float32)
PROMPTS = {"facts": {"prompts": {"query": "Q: ", "document": "D: "}}}


def post(path: str, body: Any, *, headers: dict[str, str] | None = None, rows: Any = ROWS) -> Called:
    return answered(
        "POST", path, body, headers, before=lambda edge: setattr(edge.managers, "rows", rows), max_bytes=10_000
    )


def answer(path: str, body: Any, **how: Any) -> Any:
    called = post(path, body, **how)
    assert called.status == 200, called.body
    return json.loads(called.body)


def decoded(version: int = 2, **fields: Any) -> EmbedRequest:
    body = json.dumps({**BODY, **fields}).encode()
    request = ROUTES[version - 1].decode(new_call(models=one_model(**PROMPTS)), body)
    assert isinstance(request, EmbedRequest)
    return request


# answers


@pytest.mark.holds("Cohere's routes")
def test_version_1_answers_floats_where_no_type_is_asked_for() -> None:
    body = answer("/v1/embed", BODY, headers={"x-request-id": "mine"})
    assert body == {
        "id": "mine",
        "response_type": "embeddings_floats",
        "embeddings": ROWS.tolist(),
        "texts": TEXTS,
        "meta": {
            "api_version": {"version": "1"},
            "billed_units": {"input_tokens": 8},
            "tokens": {"input_tokens": 8},
        },
    }


@pytest.mark.holds("Cohere's routes")
@pytest.mark.parametrize(("path", "types"), [("/v2/embed", None), ("/v2/embed", ["float"]), ("/v1/embed", ["float"])])
def test_rows_by_type(path: str, types: Any) -> None:
    body = answer(path, {**BODY, "embedding_types": types})
    assert body["response_type"] == "embeddings_by_type"
    assert body["embeddings"] == {"float": ROWS.tolist()}
    assert body["meta"]["api_version"]["version"] == path[2]
    assert body["texts"] == TEXTS


@pytest.mark.holds("Cohere's routes")
def test_every_type_at_once() -> None:
    types = ["base64", "float", "int8", "uint8", "binary", "ubinary", "float"]
    called = post("/v2/embed", {**BODY, "embedding_types": types})
    found = json.loads(called.body)["embeddings"]

    assert list(found) == types[:-1]
    assert [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in found["base64"]] == ROWS.tolist()
    bits = np.packbits(ROWS > 0, axis=1)
    assert found["ubinary"] == bits.tolist()
    assert found["binary"] == (bits.astype(np.int16) - 128).tolist()
    int8 = np.rint(ROWS * 127).astype(int)  # each row by its own largest number
    assert found["int8"] == int8.tolist()
    assert found["uint8"] == (int8 + 128).tolist()
    assert called.headers["x-embedline-scale"] == "row"


def test_a_type_alone_as_raw_rows() -> None:
    called = post("/v2/embed", {**BODY, "embedding_types": ["int8"]}, headers=RAW)
    assert (called.headers["x-embedline-shape"], called.headers["x-embedline-dtype"]) == ("2,8", "int8")
    assert np.array_equal(np.frombuffer(called.body, np.int8).reshape(2, 8), np.rint(ROWS * 127))
    several = post("/v2/embed", {**BODY, "embedding_types": ["int8", "float"]}, headers=RAW)
    assert several.headers["content-type"] == "application/json"


def test_fewer_dimensions() -> None:
    assert answer("/v2/embed", {**BODY, "output_dimension": 2})["embeddings"]["float"] == ROWS[:, :2].tolist()


def test_texts_come_back_as_they_were() -> None:
    texts = ['a "b"\\', "é🙂\n"]
    assert answer("/v2/embed", {**BODY, "texts": texts})["texts"] == texts


@pytest.mark.holds("Errors of single items")
def test_a_text_that_fails_alone_has_null_and_a_warning() -> None:
    body = {**BODY, "texts": ["one", "", "three"], "on_error": "null", "embedding_types": ["float", "ubinary"]}
    found = answer("/v2/embed", body)
    assert found["embeddings"]["float"] == [ROWS[0].tolist(), None, ROWS[1].tolist()]
    assert [row is None for row in found["embeddings"]["ubinary"]] == [False, True, False]
    assert found["meta"]["warnings"] == ["texts[1] must not be empty"]
    assert found["texts"] == ["one", "", "three"]


# bodies


@pytest.mark.parametrize("version", [1, 2])
def test_contents_of_text(version: int) -> None:
    contents = [
        {"content": [{"type": "text", "text": "one"}]},
        {"content": [{"type": "text", "text": "two"}, {"type": "text", "text": "three"}]},
    ]
    assert decoded(version, texts=None, inputs=contents).texts == ["one", "two\nthree"]
    found = answer(f"/v{version}/embed", {"inputs": contents, "input_type": "search_query"})
    assert found["texts"] == ["one", "two\nthree"]


@pytest.mark.parametrize(("input_type", "prompt"), [("search_query", "Q: "), ("search_document", "D: "), (None, "")])
def test_the_input_type_chooses_the_prompt(input_type: Any, prompt: str) -> None:
    assert decoded(input_type=input_type).prompt == prompt


@pytest.mark.parametrize(("priority", "expected"), [(None, None), (0, None), (1, RequestClass.BULK)])
def test_all_but_the_highest_priority_is_bulk(priority: Any, expected: Any) -> None:
    assert decoded(priority=priority).request_class is expected


@pytest.mark.holds("Cohere's routes")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"texts": None}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": "one"}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": [[5]]}, "texts"),
        ({"texts": ["a"] * 5}, "texts"),
        ({"images": ["data:image/png;base64,AAAA"]}, "images"),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts"),
        (
            {"texts": None, "inputs": [{"content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
            "inputs[0].content[0]",
        ),
        ({"texts": None, "inputs": [{"content": []}]}, "inputs[0].content"),
        ({"texts": None, "inputs": []}, "inputs"),
        ({"texts": None, "inputs": [{"content": [{"type": "text", "text": ""}]}]}, "inputs[0]"),
        ({"embedding_types": ["float", "int4"]}, "embedding_types[1]"),
        ({"embedding_types": "float"}, "embedding_types"),
        ({"output_dimension": 9}, "output_dimension"),
        ({"output_dimension": 0}, "output_dimension"),
        ({"truncate": "MIDDLE"}, "truncate"),
        ({"input_type": "image"}, "input_type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"priority": -1}, "priority"),
        ({"priority": 1000}, "priority"),
        ({"late_chunking": True}, "late_chunking"),
    ],
)
def test_what_is_refused_is_named_where_coheres_client_looks(path: str, fields: dict[str, Any], param: str) -> None:
    called = post(path, {**BODY, **fields})

    assert called.status == 400
    assert called.error()["param"] == param
    assert json.loads(called.body)["message"] == called.error()["message"]


def test_a_word_behind_the_name_in_the_path_is_a_prompt() -> None:
    models = one_model(facts={"prompts": {"query": "Q: "}}).named("the-model:query")
    body = json.dumps({"texts": TEXTS, "model": "another"}).encode()
    assert ROUTES[0].decode(new_call(models=models), body).prompt == "Q: "
