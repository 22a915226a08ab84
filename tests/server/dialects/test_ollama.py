"""Ollama's routes: its bodies, answers and errors, and inputs without a text, which only load a model."""

import json
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from server.http.access import Hosts
from server.requests.errors import EmptyInput, InvalidRequest, ModelNotFound, RequestError
from server.requests.models import ModelTable
from server.requests.work import Trace
from tests.server.asking import RAW, ask, decoded_by, refused_by
from tests.server.edge import Called, Edge, answered, call, one_model, ready_state, route_of, served_model
from tokenizer_pool.messages import Truncation

ROWS = [[3.0, 4.0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 8.0, 6.0]]


def answer(path: str, rows: Any = ROWS, **fields: Any) -> Called:
    return ask(path, {"model": "all-minilm", **fields}, OutputKind.POOLED, rows=rows)


def get(path: str, headers: dict[str, str] | None = None, **how: Any) -> Called:
    return answered("GET", path, headers=headers, **how)


def decoder_of(body: Any) -> Any:
    return route_of("/api/embeddings" if "prompt" in body else "/api/embed").decode


def request(body: Any, models: ModelTable | None = None, **how: Any) -> Any:
    return decoded_by(decoder_of(body), body, models=models or one_model(**how))


@pytest.mark.holds("Ollama's routes")
def test_rows_have_length_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trace, "elapsed", lambda _: 1.5)
    called = answer("/api/embed", input=["a", "b"])

    content = json.loads(called.body)
    assert content["model"] == "the-model"
    assert np.allclose(content["embeddings"], np.array(ROWS) / [[5.0], [10.0]])
    assert content["prompt_eval_count"] == 2
    assert content["total_duration"] == 1_500_000_000  # nanoseconds
    assert content["load_duration"] == 0


@pytest.mark.holds("Ollama's routes")
def test_one_text_gives_a_list_with_one_row() -> None:
    assert len(json.loads(answer("/api/embed", ROWS[:1], input="a").body)["embeddings"]) == 1


@pytest.mark.holds("Ollama's routes")
def test_the_older_route_gives_the_row_as_the_model_makes_it() -> None:
    assert json.loads(answer("/api/embeddings", ROWS[:1], prompt="a").body) == {"embedding": ROWS[0]}


@pytest.mark.holds("Ollama's routes")
@pytest.mark.parametrize("fields", [{}, {"input": ""}, {"input": []}, {"input": None}], ids=str)
def test_without_a_text_there_is_no_row_and_nothing_is_computed(fields: dict[str, Any]) -> None:
    def look(edge: Edge) -> None:
        assert edge.managers.submitted == []

    called = ask("/api/embed", {"model": "m", **fields}, OutputKind.POOLED, look=look)

    assert (called.status, json.loads(called.body)["embeddings"]) == (200, [])
    older = ask("/api/embeddings", {"model": "m", "prompt": ""}, OutputKind.POOLED, look=look)
    assert json.loads(older.body) == {"embedding": []}


@pytest.mark.holds("Ollama's routes")
@pytest.mark.parametrize(
    ("path", "name", "text"),
    [
        ("/api/embeddings", "input", ["a"]),  # the newer route's
        ("/api/embeddings", "inputs", "a"),
        ("/api/embed", "prompt", "a"),
        ("/api/embed", "inputs", ["a"]),
        ("/api/embed", "texts", ["a"]),
        ("/api/embed", "text", "a"),
    ],
)
def test_a_text_by_another_routes_name_is_refused_and_not_left_out(path: str, name: str, text: Any) -> None:
    called = ask(path, {"model": "m", name: text}, OutputKind.POOLED)

    assert called.status == 400
    assert json.loads(called.body)["error"].startswith(f"{name} is not supported on this route")
    empty = ask(path, {"model": "m", name: type(text)(), "stream": False}, OutputKind.POOLED)
    assert empty.status == (400 if name == "prompt" else 200)


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_raw_bytes(path: str) -> None:
    body = {"model": "m", "input": "a", "prompt": "a"} if path == "/api/embeddings" else {"model": "m", "input": "a"}
    body.pop("input") if path == "/api/embeddings" else None
    called = ask(path, body, OutputKind.POOLED, rows=ROWS[:1], headers=RAW)

    assert called.headers["x-embedline-shape"] == "1,8"
    assert len(called.body) == 8 * 4


@pytest.mark.holds("Ollama's routes")
def test_dimensions() -> None:
    assert request({"input": "a", "dimensions": 3}).dimensions == 3
    assert request({"input": "a", "dimensions": 0}).dimensions is None
    with pytest.raises(InvalidRequest) as refused:
        request({"input": "a", "dimensions": 9})
    assert refused.value.param == "dimensions"


@pytest.mark.holds("Ollama's routes")
def test_what_is_cut_off() -> None:
    assert request({"input": "a"}).truncation is Truncation.RIGHT
    assert request({"input": "a"}, truncation=Truncation.NONE).truncation is Truncation.NONE
    assert request({"input": "a", "truncate": False}).truncation is Truncation.NONE
    assert request({"input": "a", "truncate": True}, truncation=Truncation.NONE).truncation is Truncation.RIGHT
    assert request({"input": "a"}).max_tokens is None
    for body in ({"input": "a"}, {"prompt": "a"}):
        assert request({**body, "options": {"num_ctx": 5, "temperature": 0.5}}).max_tokens == 5


@pytest.mark.holds("Ollama's routes")
@pytest.mark.parametrize(
    ("body", "error", "param"),
    [
        ({"input": ["a", ""]}, EmptyInput, "input[1]"),
        ({"input": [1, 2]}, InvalidRequest, "input"),
        ({"input": 5}, InvalidRequest, "input"),
        ({"input": "a", "options": {"num_ctx": 0}}, InvalidRequest, "options.num_ctx"),
        ({"input": "a", "truncate": "END"}, InvalidRequest, "truncate"),
        ({"input": "a", "prompt_name": "query"}, InvalidRequest, "prompt_name"),
        ({"prompt": ["a"]}, InvalidRequest, "prompt"),
        ({"prompt": "a", "dimensions": 2}, InvalidRequest, "dimensions"),
    ],
    ids=str,
)
def test_refusals(body: dict[str, Any], error: type[RequestError], param: str) -> None:
    assert refused_by(decoder_of(body), body, models=one_model()) == (error, param)


def test_what_has_no_effect_is_passed_over() -> None:
    assert request({"input": "a", "keep_alive": "5m", "options": {"seed": 1, "num_gpu": 2}}).texts == ["a"]
    assert request({"input": "a", "keep_alive": -1}).texts == ["a"]


@pytest.mark.holds("Ollama's routes")
def test_names_may_end_in_latest() -> None:
    two = ModelTable([served_model(), served_model(index=1, name="second")])

    assert request({"model": "second:latest", "input": "a"}, two).model.name == "second"
    with pytest.raises(ModelNotFound):
        request({"model": "third:latest", "input": "a"}, two)


@pytest.mark.holds("Errors", "Ollama's routes")
def test_errors_are_one_text() -> None:
    called = answer("/api/embed", input=[""])

    assert called.status == 400
    assert json.loads(called.body) == {"error": "input[0] must not be an empty string"}


@pytest.mark.holds("Errors", "Ollama's routes")
@pytest.mark.parametrize(
    ("path", "how", "status"),
    [
        ("/api/generate", {}, 404),
        ("/api/embed", {}, 405),
        ("/api/generate", {"hosts": Hosts(("a.example",))}, 403),
    ],
)
def test_errors_of_paths_that_are_not_there_are_one_text_too(path: str, how: dict[str, Any], status: int) -> None:
    called = get(path, headers={"host": "page.example"}, **how)

    assert called.status == status
    assert list(json.loads(called.body)) == ["error"]
    assert isinstance(json.loads(called.body)["error"], str)


@pytest.mark.holds("Ollama's routes")
def test_what_there_is() -> None:
    for path in ("/api/tags", "/api/ps"):
        (tag,) = json.loads(get(path).body)["models"]
        assert tag["name"] == tag["model"] == "the-model"
        assert tag["modified_at"] == "1970-01-01T00:00:07+00:00"
        assert tag["details"]["quantization_level"] == "float32"
    assert json.loads(get("/api/version").body)["version"]
    assert json.loads(get("/api/tags", is_loaded=False).body) == {"models": []}


@pytest.mark.holds("Ollama's routes")
@pytest.mark.parametrize("field", ["model", "name"])
def test_a_model_is_shown(field: str) -> None:
    content = json.loads(ask("/api/show", {field: "the-model"}, OutputKind.POOLED).body)

    assert content["capabilities"] == ["embedding"]
    family = content["model_info"]["general.architecture"]
    assert content["model_info"][f"{family}.embedding_length"] == 8
    assert content["model_info"][f"{family}.context_length"] == 16


async def test_an_unknown_model_is_404_so_that_clients_see_it() -> None:
    models = ready_state()["models"]
    second = {**models[0], "index": 1, "info": {**models[0]["info"], "name": "second"}}
    edge = Edge(loaded=ready_state(names=["the-model", "second"], models=[models[0], second]))
    called = await call(edge.app, "POST", "/api/show", b'{"model":"third"}')
    assert (called.status, list(json.loads(called.body))) == (404, ["error"])
