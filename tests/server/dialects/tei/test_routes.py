"""TEI's routes in a frontend: what each answers, its headers, and every error in TEI's own shape."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from batch_manager import messages as batching
from batch_manager.messages import RequestRefused
from engine.types import OutputKind
from server.dialects.tei import embed, tokens
from tests.server.edge import Called, Edge, call, ready_state
from tokenizer_pool.messages import TextRefusal, TextRefused

TEXTS = b'{"inputs":["one","three"]}'
SIMILAR = b'{"inputs":{"source_sentence":"one","sentences":["two","three"]}}'
GOOD = {
    "/embed": TEXTS,
    "/embed_all": TEXTS,
    "/similarity": SIMILAR,
    "/": TEXTS,
    "/invocations": SIMILAR,
    "/tokenize": TEXTS,
    "/decode": b'{"ids":[5]}',
}
COMPUTING = ("/embed", "/embed_all", "/similarity", "/", "/invocations")
TIMES = ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")


def with_edge(test: Callable[[Edge], Awaitable[Any]], **settings: Any) -> Any:
    async def run() -> Any:
        return await test(Edge(**settings))

    return asyncio.run(run())


def post(path: str, body: bytes | dict[str, Any], **headers: str) -> Called:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    called = with_edge(lambda edge: call(edge.app, "POST", path, payload, named))
    assert isinstance(called, Called)
    return called


def error_type(called: Called) -> str:
    """The type of an error in TEI's shape."""
    error = json.loads(called.body)
    assert set(error) == {"error", "error_type"}
    assert isinstance(error["error"], str)
    assert called.headers["content-type"] == "application/json"
    return str(error["error_type"])


@pytest.mark.holds("Requests and answers", "TEI's routes")
def test_there_is_a_good_body_for_every_route() -> None:
    assert GOOD.keys() == {route.path for route in (*embed.ROUTES, *tokens.ROUTES)} | {"/", "/invocations"}
    for path, body in GOOD.items():
        for slash in ("", "/") if path != "/" else ("",):
            assert post(path + slash, body).status == 200


@pytest.mark.holds("TEI's routes")
def test_embed_is_2d_and_of_length_1_also_for_one_text() -> None:
    row = [8**-0.5] * 8  # the stand-in's rows are of equal numbers

    assert np.allclose(json.loads(post("/embed", {"inputs": "one"}).body), [row])
    assert np.allclose(json.loads(post("/embed", TEXTS).body), [row, row])
    assert json.loads(post("/embed", {"inputs": ["one", "three"], "normalize": False}).body) == [[3.0] * 8, [5.0] * 8]
    assert np.allclose(json.loads(post("/embed", {"inputs": "one", "dimensions": 4}).body), [[0.5] * 4])


def test_raw_rows() -> None:
    called = post("/embed", {"inputs": ["one", "three"], "normalize": False}, accept="application/octet-stream")

    assert called.headers["content-type"] == "application/octet-stream"
    assert called.headers["x-embedline-shape"] == "2,8"
    assert called.headers["x-compute-tokens"] == "8"
    assert np.array_equal(np.frombuffer(called.body, "<f4").reshape(2, 8), [[3.0] * 8, [5.0] * 8])


@pytest.mark.holds("TEI's routes")
def test_embed_all_has_a_row_for_each_token() -> None:
    assert json.loads(post("/embed_all", TEXTS).body) == [[[3.0] * 8] * 3, [[5.0] * 8] * 5]
    assert json.loads(post("/embed_all", {"inputs": "a"}).body) == [[[1.0] * 8]]


@pytest.mark.holds("TEI's routes")
def test_similarity_is_of_the_source_with_each_sentence() -> None:
    rows = np.array([[3, 4], [-3, -4], [4, -3], [8, 6]], np.float32)

    async def test(edge: Edge) -> Called:
        edge.managers.rows = rows
        body = b'{"inputs":{"source_sentence":"a","sentences":["b","c","d"]}}'
        return await call(edge.app, "POST", "/similarity", body)

    assert np.allclose(json.loads(with_edge(test).body), [-1, 0, 0.96])


@pytest.mark.holds("TEI's routes")
@pytest.mark.parametrize("path", ["/", "/invocations"])
def test_the_root_looks_at_the_form_of_the_body(path: str) -> None:
    assert json.loads(post(path, TEXTS).body) == json.loads(post("/embed", TEXTS).body)
    assert json.loads(post(path, SIMILAR).body) == json.loads(post("/similarity", SIMILAR).body)


@pytest.mark.holds("TEI's routes")
def test_tokenize_and_decode() -> None:
    assert json.loads(post("/tokenize", {"inputs": "ab"}).body) == [
        [
            {"id": 97, "text": "a", "special": False, "start": 0, "stop": 1},
            {"id": 98, "text": "b", "special": False, "start": 1, "stop": 2},
        ]
    ]
    assert json.loads(post("/decode", {"ids": [5, 6]}).body) == ["5 6"]
    assert json.loads(post("/decode", {"ids": [[5, 6], [7]]}).body) == ["5 6", "7"]


@pytest.mark.holds("TEI's routes")
@pytest.mark.parametrize("path", COMPUTING)
def test_timing_headers(path: str) -> None:
    called = post(path, GOOD[path])

    assert called.headers["x-compute-type"] == "gpu+optimized"
    num_characters = 11 if GOOD[path] == SIMILAR else 8
    assert called.headers["x-compute-characters"] == called.headers["x-compute-tokens"] == str(num_characters)
    assert called.headers["x-embedline-truncated-inputs"] == "0"
    assert all(called.headers[name].isdigit() for name in TIMES)


@pytest.mark.holds("TEI's routes")
def test_what_was_cut_is_said() -> None:
    assert post("/embed", {"inputs": ["a", "b" * 20]}).headers["x-embedline-truncated-inputs"] == "1"


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    ("status", "kind", "body", "headers"),
    [
        (422, "Validation", b"{}", {}),
        (400, "Validation", b"{", {}),
        (422, "Validation", None, {"request_timeout_ms": "soon"}),
        (413, "Validation", None, {"content_length": "1001"}),
        (415, "Validation", None, {"content_encoding": "br"}),
    ],
)
def test_bad_requests(path: str, status: int, kind: str, body: bytes | None, headers: dict[str, str]) -> None:
    called = post(path, GOOD[path] if body is None else body, **headers)

    assert (called.status, error_type(called)) == (status, kind)


def test_empty_inputs_in_teis_words() -> None:
    for path in ("/embed", "/embed_all", "/tokenize", "/"):
        for nothing in ("", [], [""]):
            called = post(path, {"inputs": nothing})
            assert (called.status, error_type(called)) == (400, "Empty")
    assert json.loads(post("/embed", {"inputs": ""}).body)["error"] == "`inputs` cannot be empty"


@pytest.mark.holds("Limits")
def test_too_many_items() -> None:
    called = post("/embed", {"inputs": ["a"] * 5})

    assert (called.status, error_type(called)) == (422, "Validation")
    assert "maximum allowed batch size of 4" in json.loads(called.body)["error"]


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("path", COMPUTING)
@pytest.mark.parametrize(
    ("where", "error", "status", "kind"),
    [
        ("tokenizers", TextRefused(TextRefusal.FAILED, 0), 422, "Tokenizer"),
        ("tokenizers", TextRefused(TextRefusal.TOO_LONG, 0, num_tokens=20, max_tokens=16), 422, "Validation"),
        ("tokenizers", TextRefused(TextRefusal.EMPTY, 0), 400, "Empty"),
        ("managers", RequestRefused(batching.RequestRefusal.NO_ENGINE, -1), 503, "Unhealthy"),
        ("managers", RequestRefused(batching.RequestRefusal.NON_FINITE, 0), 424, "Backend"),
        ("managers", RequestRefused(batching.RequestRefusal.DEADLINE, -1), 504, "Overloaded"),
        ("managers", ZeroDivisionError("an inner detail"), 424, "Backend"),
    ],
)
def test_failures(path: str, where: str, error: Exception, status: int, kind: str) -> None:
    async def test(edge: Edge) -> Called:
        getattr(edge, where).error = error
        return await call(edge.app, "POST", path, GOOD[path])

    called = with_edge(test)
    assert (called.status, error_type(called)) == (status, kind)
    assert b"inner detail" not in called.body


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("path", ["/tokenize", "/decode"])
def test_failures_of_the_tokenizer(path: str) -> None:
    async def test(edge: Edge) -> Called:
        edge.tokenizers.error = TextRefused(TextRefusal.FAILED, 0)
        return await call(edge.app, "POST", path, GOOD[path])

    called = with_edge(test)
    assert (called.status, error_type(called)) == (422, "Tokenizer")


@pytest.mark.holds("TEI's routes")
def test_a_model_without_token_rows() -> None:
    async def test(edge: Edge) -> Called:
        loaded = ready_state()
        loaded["models"][0]["info"]["outputs"] = OutputKind.POOLED
        edge.state.update(loaded)
        return await call(edge.app, "POST", "/embed_all", TEXTS)

    called = with_edge(test)
    assert (called.status, error_type(called)) == (424, "Backend")


def test_too_many_requests() -> None:
    async def test(edge: Edge) -> Called:
        edge.managers.gate = asyncio.Event()
        first = asyncio.create_task(call(edge.app, "POST", "/embed", TEXTS))
        await edge.managers.arrivals.get()
        refused = await call(edge.app, "POST", "/embed", TEXTS)
        edge.managers.gate.set()
        assert (await first).status == 200
        return refused

    called = with_edge(test, max_requests=1)
    assert (called.status, error_type(called)) == (429, "Overloaded")
    assert int(called.headers["retry-after"]) >= 1


@pytest.mark.holds("TEI's routes")
@pytest.mark.parametrize("path", ["/", "/ping", "/health"])
def test_health(path: str) -> None:
    assert with_edge(lambda edge: call(edge.app, "GET", path)).status == 200
    assert with_edge(lambda edge: call(edge.app, "GET", path), is_loaded=False).status == 503


@pytest.mark.holds("Errors")
def test_other_methods() -> None:
    async def test(edge: Edge) -> list[Called]:
        asked = (("GET", "/embed"), ("PUT", "/"), ("PUT", "/ping"))
        return [await call(edge.app, method, path) for method, path in asked]

    assert [(called.status, called.headers["allow"]) for called in with_edge(test)] == [
        (405, "POST"),
        (405, "GET, POST"),
        (405, "GET, POST"),
    ]


@pytest.mark.holds("TEI's routes")
def test_info_has_teis_fields_at_the_top() -> None:
    info = json.loads(with_edge(lambda edge: call(edge.app, "GET", "/info")).body)

    assert info["model_id"] == "somebody/the-model"
    assert info["served_model_name"] == "the-model"
    assert (info["model_sha"], info["model_dtype"]) == (None, "float32")
    assert info["model_type"] == {"embedding": {"pooling": "last_token"}}
    assert (info["max_input_length"], info["max_client_batch_size"]) == (16, 4)
    assert {"version", "sha", "docker_label"} <= info.keys()
    assert info["ready"] is True
    assert info["models"][0]["info"]["dimensions"] == 8
    assert info["models"][0]["info"]["outputs"] == ["pooled", "tokens"]
    assert info["models"][0]["truncation"] == "right"


def test_info_while_the_model_is_loading() -> None:
    info = json.loads(with_edge(lambda edge: call(edge.app, "GET", "/info"), is_loaded=False).body)
    assert (info["ready"], info["models"]) == (False, [])
