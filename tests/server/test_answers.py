"""What holds for answers of every route: JSON unless rows are asked for raw, never compressed, one shape of error."""

import asyncio
import json

import pytest

from server.routes import ROUTES
from tests.server.edge import Called, Edge, call

BODIES = {"/v1/embeddings": b'{"input":"a"}', "/embeddings": b'{"input":"a"}', "/decode": b'{"ids":[5]}'}
BODIES["/similarity"] = b'{"inputs":{"source_sentence":"a","sentences":["b"]}}'
PATHS = [route.path for route in ROUTES]
RAW = ("/v1/embeddings", "/embeddings", "/embed", "/", "/invocations")
OPENAI = ("/v1/embeddings", "/embeddings")


def ask(method: str, path: str, body: bytes = b"", **headers: str) -> Called:
    async def run() -> Called:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await call(Edge().app, method, path, body, named)

    return asyncio.run(run())


def good(path: str) -> bytes:
    return BODIES.get(path, b'{"inputs":"a"}')


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_never_compressed(path: str) -> None:
    for body in (good(path), b"{}"):
        assert "content-encoding" not in ask("POST", path, body, accept_encoding="gzip, br, zstd").headers


@pytest.mark.parametrize("path", PATHS)
def test_rows_go_out_raw_where_that_is_asked_for_and_all_else_is_json(path: str) -> None:
    called = ask("POST", path, good(path), accept="application/octet-stream")

    assert called.status == 200
    assert called.headers["content-type"] == f"application/{'octet-stream' if path in RAW else 'json'}"
    assert (len(called.body) == 8 * 4) is (path in RAW)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"{}", b"{", b"[]"])
def test_errors_are_json_in_the_routes_own_shape_also_where_raw_rows_are_asked_for(path: str, body: bytes) -> None:
    called = ask("POST", path, body, accept="application/octet-stream")

    assert called.headers["content-type"] == "application/json"
    error = json.loads(called.body)
    assert set(error) == ({"error"} if path in OPENAI else {"error", "error_type"})
    assert called.status == (400 if path in OPENAI or body == b"{" else 422)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/tokenize", "/livez", "/nowhere"])
def test_unknown_paths_and_methods_are_refused_in_openais_shape_wherever(path: str) -> None:
    called = ask("DELETE", path)

    assert called.status == (404 if path == "/nowhere" else 405)
    assert called.error()["code"] == ("unknown_url" if path == "/nowhere" else "method_not_supported")


@pytest.mark.parametrize("path", PATHS)
def test_what_was_cut_is_said_where_rows_are_made(path: str) -> None:
    header = ask("POST", path, good(path)).headers.get("x-embedline-truncated-inputs")
    assert header == (None if path in ("/tokenize", "/decode") else "0")


def test_usage_says_how_many_texts_were_cut() -> None:
    called = ask("POST", "/v1/embeddings", json.dumps({"input": ["a", "b" * 17, "c" * 16, "d" * 99]}).encode())

    assert json.loads(called.body)["usage"]["truncated_inputs"] == 2
    assert called.headers["x-embedline-truncated-inputs"] == "2"


def test_the_viewer_comes_from_a_public_network_and_the_description_does_not() -> None:
    assert b"https://cdn." in ask("GET", "/docs").body
    assert b"://" not in ask("GET", "/openapi.json").body.replace(b"://huggingface.github.io", b"")
