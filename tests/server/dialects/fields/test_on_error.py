"""`on_error: "null"` on the embedding routes: what answers look like if some inputs are wrong."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from tests.server.edge import Called, Edge, answered, call, state_with

TEXTS = ["one", "", "three", "x" * 17]  # the last has one token more than the model takes
OPENAI = {"input": TEXTS, "on_error": "null"}
TEI = {"inputs": TEXTS, "on_error": "null"}
NONE = float("nan")


def post(path: str, body: dict[str, Any], **headers: str) -> Called:
    return answered("POST", path, body, headers)


def raw(called: Called, dtype: str = "<f4") -> list[float]:
    """The first number of each row."""
    assert called.status == 200, called.body
    return [float(number) for number in np.frombuffer(called.body, dtype).reshape(4, -1)[:, 0]]


@pytest.mark.holds("Errors of single items")
def test_openais_items_have_null_and_an_error() -> None:
    called = post("/v1/embeddings", OPENAI)
    items = json.loads(called.body)["data"]

    assert [item["index"] for item in items] == [0, 1, 2, 3]
    assert [item["embedding"] and item["embedding"][0] for item in items] == [3, None, 5, 17]
    assert items[1]["error"] == {
        "message": "input[1] must not be empty",
        "type": "invalid_request_error",
        "param": "input[1]",
        "code": None,
    }
    assert all("error" not in items[index] for index in (0, 2, 3))
    assert (called.headers["x-embedline-failed-inputs"], called.headers["x-embedline-truncated-inputs"]) == ("1", "1")


def test_base64_has_null_too() -> None:
    items = json.loads(post("/v1/embeddings", {**OPENAI, "encoding_format": "base64"}).body)["data"]
    assert items[1]["embedding"] is None
    assert np.frombuffer(base64.b64decode(items[2]["embedding"]), "<f4")[0] == 5


@pytest.mark.parametrize("dtype", ["int8", "ubinary"])
def test_whole_numbers_have_null_too(dtype: str) -> None:
    items = json.loads(post("/v1/embeddings", {**OPENAI, "output_dtype": dtype}).body)["data"]
    assert [item["embedding"] is None for item in items] == [False, True, False, False]


@pytest.mark.holds("Errors of single items")
def test_teis_list_has_null() -> None:
    called = post("/embed", {**TEI, "truncate": False, "normalize": False})
    rows = json.loads(called.body)

    assert rows == [[3.0] * 8, None, [5.0] * 8, None]
    assert called.headers["x-embedline-failed-inputs"] == "2"
    assert called.headers["x-embedline-truncated-inputs"] == "0"


@pytest.mark.holds("Errors of single items")
def test_raw_rows_have_nan() -> None:
    called = post("/embed", {**TEI, "normalize": False}, accept="application/octet-stream")
    assert np.array_equal(raw(called), [3, NONE, 5, 17], equal_nan=True)
    assert called.headers["x-embedline-failed-inputs"] == "1"
    half = {**OPENAI, "encoding_format": "bytes", "embed_dtype": "float16"}
    assert np.array_equal(raw(post("/v1/embeddings", half), "<f2"), [3, NONE, 5, 17], equal_nan=True)


@pytest.mark.parametrize("dtype", ["int8", "binary", "fp8_e4m3"])
def test_types_without_nan_are_refused_as_raw_rows(dtype: str) -> None:
    error = post("/v1/embeddings", {**OPENAI, "encoding_format": "bytes", "embed_dtype": dtype}).error()
    assert (error["param"], dtype in error["message"]) == ("on_error", True)


def test_a_single_wrong_text_has_an_answer_too() -> None:
    assert json.loads(post("/embed", {"inputs": "", "on_error": "null"}).body) == [None]
    (item,) = json.loads(post("/v1/embeddings", {"input": "", "on_error": "null"}).body)["data"]
    assert (item["embedding"], item["error"]["param"]) == (None, "input")


@pytest.mark.parametrize("inputs", [["one", [], [5, 6], ""], ["", []]])
def test_lists_that_mix_texts_and_ids(inputs: list[Any]) -> None:
    rows = json.loads(post("/embed", {"inputs": inputs, "on_error": "null"}).body)
    assert [row is None for row in rows] == [not item for item in inputs]


@pytest.mark.holds("Errors of single items")
def test_ollamas_list_has_null() -> None:
    called = post("/api/embed", {**OPENAI, "truncate": False})
    rows = json.loads(called.body)["embeddings"]
    assert [row is None for row in rows] == [False, True, False, True]
    assert len(rows[0]) == len(rows[2]) == 8
    assert called.headers["x-embedline-failed-inputs"] == "2"
    assert json.loads(post("/api/embed", {"input": ["", ""], "on_error": "null"}).body)["embeddings"] == [None, None]
    assert json.loads(post("/api/embed", {"input": "", "on_error": "null"}).body)["embeddings"] == []  # only loads


@pytest.mark.holds("Errors of single items")
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vllms_items_have_null_and_an_error(encoding: str) -> None:
    items = json.loads(post("/pooling", {**OPENAI, "encoding_format": encoding}).body)["data"]
    assert [item["data"] is None for item in items] == [False, True, False, False]
    assert items[1]["error"]["param"] == "input[1]"
    assert all("error" not in items[index] for index in (0, 2, 3))


@pytest.mark.holds("Errors of single items")
def test_rows_of_tokens_have_null() -> None:
    called = post("/embed_all", {**TEI, "truncate": False})
    rows = json.loads(called.body)
    assert [row and len(row) for row in rows] == [3, None, 5, None]
    assert rows[2] == [[5.0] * 8] * 5
    assert called.headers["x-embedline-failed-inputs"] == "2"
    assert json.loads(post("/embed_all", {"inputs": ["", ""], "on_error": "null"}).body) == [None, None]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_raw_rows_of_tokens_have_none_for_a_wrong_text(dtype: str) -> None:
    body = {**TEI, "truncate": False, "encoding_format": "bytes", "embed_dtype": dtype}
    called = post("/embed_all", body)
    assert called.status == 200, called.body
    assert np.frombuffer(called.body, "<u4", 5).tolist() == [0, 3, 3, 8, 8]
    assert called.headers["x-embedline-shape"] == "8,8"


async def test_a_model_for_late_interaction_alone_can_not() -> None:
    edge = Edge(loaded=state_with(OutputKind.MULTI_VECTOR))
    called = await call(edge.app, "POST", "/embed_all", json.dumps(TEI).encode())
    assert (called.status, "on_error" in json.loads(called.body)["error"]) == (422, True)


@pytest.mark.parametrize("body", [{"input": TEXTS}, {"input": TEXTS, "on_error": "fail"}])
def test_without_it_one_wrong_text_fails_the_request(body: dict[str, Any]) -> None:
    assert post("/v1/embeddings", body).error()["param"] == "input[1]"


def test_other_answers_do_not_count_errors() -> None:
    assert "x-embedline-failed-inputs" not in post("/v1/embeddings", {"input": ["a"]}).headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {**OPENAI, "on_error": "skip"}),
        ("/v1/embeddings", {**OPENAI, "on_error": 5}),
        ("/v1/classify", {"input": "a", "on_error": "null"}),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "on_error": "null"}),
        ("/pooling", {"input": "a", "task": "token_embed", "on_error": "null"}),
        ("/pooling", {"input": "a", "encoding_format": "bytes", "embed_dtype": "fp8_e4m3", "on_error": "null"}),
    ],
)
def test_what_is_refused(path: str, body: dict[str, Any]) -> None:
    assert post(path, body).error()["param"] == "on_error"
