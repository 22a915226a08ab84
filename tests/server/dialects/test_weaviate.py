"""What Weaviate asks its inference containers: one text or several, queries and passages, meta and health."""

import json
from typing import Any

import pytest

from engine.types import OutputKind
from server.requests.errors import EmptyInput, InvalidRequest, RequestError
from server.settings.api_keys import ApiKey, digest
from tests.server.asking import RAW, ask, decoded_by, refused_by
from tests.server.edge import Called, answered, one_model, route_of

decode = route_of("/vectors").decode

ROWS = [[3.0, 4.0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 8.0, 6.0]]
FACTS = {"info": {"pooling": "cls"}, "prompts": {"query": "Q: ", "passage": "P: "}}
# As Weaviate's client sends it: all of its fields, and a pooling that nobody asked for.
UNASKED = {
    "dims": 0,
    "vector": None,
    "error": "",
    "config": {"pooling_strategy": "masked_mean", "task_type": "passage"},
}


def request(body: Any, **how: Any) -> Any:
    return decoded_by(decode, body, models=one_model(**{"facts": FACTS, **how}))


def get(path: str, *, is_loaded: bool = True, method: str = "GET") -> Called:
    headers = {"x-api-key": "sesame"} if path == "/meta" else {}
    return answered(method, path, headers=headers, is_loaded=is_loaded, keys=[ApiKey("team", digest(b"sesame"))])


@pytest.mark.holds("Weaviate's routes")
@pytest.mark.parametrize("path", ["/vectors", "/vectors/"])
def test_one_text(path: str) -> None:
    called = ask(path, {"text": 'a "word"', **UNASKED}, OutputKind.POOLED, rows=ROWS[:1])
    assert json.loads(called.body) == {"text": 'a "word"', "vector": ROWS[0], "dim": 8, "dims": 8}


@pytest.mark.holds("Weaviate's routes")
def test_several_texts() -> None:
    called = ask("/vectors", {"texts": ["a", "b"]}, OutputKind.POOLED, rows=ROWS)
    assert json.loads(called.body) == {"vectors": ROWS, "dim": 8, "dims": 8}


def test_raw_bytes() -> None:
    called = ask("/vectors", {"texts": ["a", "b"]}, OutputKind.POOLED, rows=ROWS, headers=RAW)
    assert called.headers["x-embedline-shape"] == "2,8"


@pytest.mark.holds("Weaviate's routes")
@pytest.mark.parametrize(
    ("config", "prompt"),
    [({}, "D: "), ({"task_type": ""}, "D: "), ({"task_type": "query"}, "Q: "), ({"task_type": "passage"}, "P: ")],
    ids=str,
)
def test_the_task_chooses_the_prompt(config: dict[str, str], prompt: str) -> None:
    assert request({"text": "a", "config": config}, default_prompt="D: ").prompt == prompt


@pytest.mark.holds("Weaviate's routes")
def test_its_own_pooling_may_be_named() -> None:
    assert request({"text": "a", "config": {"pooling_strategy": "cls"}}).texts == ["a"]
    assert request({"text": "a", "config": {"dimensions": 3}}).dimensions == 3


@pytest.mark.holds("Weaviate's routes")
@pytest.mark.parametrize(
    ("body", "error", "param"),
    [
        ({}, InvalidRequest, "text"),
        ({"text": "a", "texts": ["b"]}, InvalidRequest, "text"),
        ({"text": ""}, EmptyInput, "text"),
        ({"texts": []}, EmptyInput, "texts"),
        ({"texts": ["a", ""]}, EmptyInput, "texts[1]"),
        ({"texts": "a"}, InvalidRequest, "texts"),
        ({"texts": [1]}, InvalidRequest, "texts"),
        ({"text": "a", "config": {"pooling_strategy": "mean"}}, InvalidRequest, "config.pooling_strategy"),
        ({"text": "a", "config": {"task_type": "other"}}, InvalidRequest, "config.task_type"),
        ({"text": "a", "config": {"dimensions": 0}}, InvalidRequest, "config.dimensions"),
        ({"text": "a", "dimensions": 3}, InvalidRequest, "dimensions"),
    ],
    ids=str,
)
def test_refusals(body: dict[str, Any], error: type[RequestError], param: str) -> None:
    assert refused_by(decode, body, models=one_model(facts=FACTS)) == (error, param)


@pytest.mark.holds("Errors", "Weaviate's routes")
def test_errors_are_one_text() -> None:
    called = ask("/vectors", {"text": ""}, OutputKind.POOLED)
    assert (called.status, json.loads(called.body)) == (400, {"error": "text must not be an empty string"})


@pytest.mark.holds("Weaviate's routes", "Readiness")
def test_health_is_a_status_without_a_body_and_needs_no_key() -> None:
    for method in ("GET", "HEAD"):
        assert [get(path, method=method).status for path in ("/.well-known/live", "/.well-known/ready")] == [204, 204]
    ready = get("/.well-known/ready")
    assert (ready.body, "content-length" in ready.headers) == (b"", False)
    loading = get("/.well-known/ready", is_loaded=False)
    assert (loading.status, loading.headers["retry-after"]) == (503, "2")
    assert get("/.well-known/live", is_loaded=False).status == 204


@pytest.mark.holds("Weaviate's routes")
def test_meta() -> None:
    content = json.loads(get("/meta").body)
    assert content["model"] == "the-model"
    assert content["models"][0]["dimensions"] == 8
    assert json.loads(get("/meta", is_loaded=False).body) == {"model": None, "models": []}
