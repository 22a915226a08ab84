"""`long_text`, `late_chunking` and `late_chunking_params` on the routes that have them: what is taken, and what is
refused by name.
"""

import json
from typing import Any

import pytest

from engine.types import OutputKind
from tests.server.edge import Called, answered, state_with

LONG = "x" * 40  # the stand-in makes a token of each character, and the model takes 16
AVERAGE = (16 * 16 + 16 * 16 + 8 * 8) / 40  # of rows that say how long a sequence is


def post(
    path: str,
    body: dict[str, Any],
    outputs: OutputKind = OutputKind.POOLED | OutputKind.TOKENS,
    headers: dict[str, str] | None = None,
) -> Called:
    return answered("POST", path, body, headers, loaded=state_with(outputs))


@pytest.mark.holds("Long texts")
def test_openais_route_counts_all_tokens() -> None:
    called = post("/v1/embeddings", {"input": [LONG, "abc"], "long_text": "chunk_average"})
    answer = json.loads(called.body)
    assert [item["embedding"][0] for item in answer["data"]] == pytest.approx([AVERAGE, 3])
    assert answer["usage"] == {"prompt_tokens": 43, "total_tokens": 43, "truncated_inputs": 0}
    assert called.headers["x-embedline-truncated-inputs"] == "0"


@pytest.mark.holds("Long texts")
def test_teis_route_takes_it_where_nothing_may_be_cut() -> None:
    body = {"inputs": LONG, "truncate": False, "normalize": False, "long_text": "chunk_average"}
    assert json.loads(post("/embed", body).body)[0][0] == pytest.approx(AVERAGE)


@pytest.mark.parametrize("word", [None, "truncate"])
def test_without_it_a_long_text_is_cut(word: str | None) -> None:
    called = post("/v1/embeddings", {"input": [LONG], "long_text": word, "late_chunking": False})
    assert called.headers["x-embedline-truncated-inputs"] == "1"


def test_jinas_late_chunking() -> None:
    answer = json.loads(post("/v1/embeddings", {"input": ["abc", "de"], "late_chunking": True}).body)
    assert [item["embedding"][0] for item in answer["data"]] == [5, 5]  # both are of a sequence of five
    assert answer["usage"]["total_tokens"] == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"long_text": "average"}, "long_text"),
        ({"long_text": "chunk_average", "late_chunking": True}, "long_text"),
        ({"long_text": "chunk_average", "on_error": "null"}, "long_text"),
        ({"long_text": "chunk_average", "input": [[1, 2]]}, "long_text"),
        ({"long_text": "chunk_average", "input": ["a", [1, 2]]}, "long_text"),
        ({"late_chunking": True, "on_error": "null"}, "late_chunking"),
        ({"late_chunking": True, "input": [1, 2]}, "late_chunking"),
        ({"late_chunking": True, "input": ["x" * 10, "y" * 10]}, "input"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    called = post("/v1/embeddings", {"input": ["a"], **fields})
    assert called.error()["param"] == param


def test_chats_have_neither() -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "long_text": "chunk_average"}
    assert post("/v1/embeddings", chat).error()["param"] == "long_text"


def test_a_model_without_rows_of_tokens_has_no_late_chunks() -> None:
    called = post("/v1/embeddings", {"input": ["a"], "late_chunking": True}, OutputKind.POOLED)
    assert (called.status, called.error()["param"]) == (400, "late_chunking")


CHUNKS = {"late_chunking_params": {"chunk_size": 2}}


@pytest.mark.holds("Long texts")
def test_vllms_late_chunking_params() -> None:
    called = post("/v1/embeddings", {"input": ["abc", "de"], **CHUNKS}, headers={"accept": "application/msgpack"})
    answer = json.loads(called.body)
    assert [[row[0] for row in item["embedding"]] for item in answer["data"]] == [[3, 3], [2]]
    assert [item["late_chunking"] for item in answer["data"]] == [
        {
            "chunk_size": 2,
            "input_tokens": 3,
            "chunks": [{"token_range": [0, 2], "char_range": [0, 2]}, {"token_range": [2, 3], "char_range": [2, 3]}],
            "strategy": "fixed_tokens",
        },
        {
            "chunk_size": 2,
            "input_tokens": 2,
            "chunks": [{"token_range": [0, 2], "char_range": [0, 2]}],
            "strategy": "fixed_tokens",
        },
    ]
    assert [(item["index"], item["object"]) for item in answer["data"]] == [(0, "embedding"), (1, "embedding")]
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5, "truncated_inputs": 0}
    assert (called.headers["content-type"], answer["id"][:5]) == ("application/json", "embd-")


def test_chunks_are_cut_and_rounded_as_other_rows() -> None:
    fields = {"dimensions": 2, "embed_dtype": "int8", "truncate": False, "truncation_side": "left"}
    called = post("/v1/embeddings", {"input": "abc", **CHUNKS, **fields})
    (item,) = json.loads(called.body)["data"]
    assert [len(row) for row in item["embedding"]] == [2, 2]
    assert max(item["embedding"][0]) == 127
    assert called.headers["x-embedline-scale"] == "row"


@pytest.mark.holds("Long texts")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"late_chunking_params": {"chunk_size": 0}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": 2**63}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": True}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": 2, "overlap": 1}}, "late_chunking_params"),
        ({"late_chunking_params": 2}, "late_chunking_params"),
        ({**CHUNKS, "late_chunking": True}, "late_chunking"),
        ({**CHUNKS, "long_text": "chunk_average"}, "long_text"),
        ({**CHUNKS, "on_error": "null"}, "late_chunking_params"),
        ({**CHUNKS, "input": [1, 2]}, "late_chunking_params"),
        ({**CHUNKS, "input": [{"role": "user", "content": "a"}]}, "late_chunking_params"),
        ({**CHUNKS, "truncate_prompt_tokens": -1}, "truncate_prompt_tokens"),
        ({**CHUNKS, "truncate": True}, "truncate"),
        ({**CHUNKS, "truncate": "END"}, "truncate"),
        ({**CHUNKS, "truncation": True}, "truncation"),
        ({**CHUNKS, "max_tokens": 4}, "max_tokens"),
        ({**CHUNKS, "encoding_format": "base64"}, "encoding_format"),
        ({**CHUNKS, "encoding_format": "bytes"}, "encoding_format"),
        ({**CHUNKS, "encoding_format": ["float", "base64"]}, "encoding_format"),
        ({"chunk_size": 2}, "chunk_size"),
    ],
    ids=str,
)
def test_what_late_chunking_params_refuses(fields: dict[str, Any], param: str) -> None:
    assert post("/v1/embeddings", {"input": ["a"], **fields}).error()["param"] == param


def test_a_model_without_rows_of_tokens_has_no_chunks_of_a_fixed_size() -> None:
    called = post("/v1/embeddings", {"input": ["a"], **CHUNKS}, OutputKind.POOLED)
    assert (called.status, called.error()["param"]) == (400, "late_chunking_params")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"late_chunking_params": {"overlap": 1}}, "late_chunking_params has a field that is not known here"),
        (
            {**CHUNKS, "encoding_format": "base64"},
            "encoding_format must be float, or one type of numbers, with late_chunking_params",
        ),
    ],
)
def test_what_late_chunking_params_says(fields: dict[str, Any], message: str) -> None:
    assert post("/v1/embeddings", {"input": ["a"], **fields}).error()["message"] == message


@pytest.mark.parametrize("form", ["float16", "int8", "uint8", "binary", "ubinary", ["int8"]])
def test_chunks_are_lists_of_numbers_of_any_type(form: Any) -> None:
    (item,) = json.loads(post("/v1/embeddings", {"input": "abc", **CHUNKS, "encoding_format": form}).body)["data"]
    assert all(isinstance(number, int | float) for row in item["embedding"] for number in row)


@pytest.mark.parametrize("path", ["/embed", "/pooling"])
def test_other_routes_refuse_late_chunking_params_by_name(path: str) -> None:
    body = {"inputs": "a"} if path == "/embed" else {"input": "a"}
    assert "late_chunking_params" in post(path, {**body, **CHUNKS}).body.decode()
