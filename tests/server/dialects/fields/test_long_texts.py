"""`long_text` and `late_chunking` on the routes that have them: what is taken, and what is refused by name."""

import json
from typing import Any

import pytest

from engine.types import OutputKind
from tests.server.edge import Called, answered, state_with

LONG = "x" * 40  # the stand-in makes a token of each character, and the model takes 16
AVERAGE = (16 * 16 + 16 * 16 + 8 * 8) / 40  # of rows that say how long a sequence is


def post(path: str, body: dict[str, Any], outputs: OutputKind = OutputKind.POOLED | OutputKind.TOKENS) -> Called:
    return answered("POST", path, body, loaded=state_with(outputs))


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
