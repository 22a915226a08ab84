"""TEI's routes in a frontend: what each answers, its headers, and every error in TEI's own shape."""

import asyncio
import json
from typing import Any

import pytest

from batch_manager import messages as batching
from batch_manager.messages import RequestRefused
from server.dialects import tei
from tests.server.edge import Called, Edge, answered, call
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


def post(path: str, body: bytes | dict[str, Any], **headers: str) -> Called:
    return answered("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})


def error_type(called: Called) -> str:
    """The type of an error in TEI's shape."""
    error = json.loads(called.body)
    assert set(error) == {"error", "error_type"}
    assert isinstance(error["error"], str)
    assert called.headers["content-type"] == "application/json"
    return str(error["error_type"])


@pytest.mark.holds("Requests and answers", "TEI's routes")
def test_there_is_a_good_body_for_every_route() -> None:
    routes = (*tei.EMBED_ROUTES, tei.TOKENIZE, tei.ROUTES[0])
    assert GOOD.keys() == {route.path for route in routes} | {"/", "/invocations"}
    for path, body in GOOD.items():
        for slash in ("", "/") if path != "/" else ("",):
            assert post(path + slash, body).status == 200


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
async def test_failures(path: str, where: str, error: Exception, status: int, kind: str) -> None:
    edge = Edge()
    getattr(edge, where).error = error
    called = await call(edge.app, "POST", path, GOOD[path])
    assert (called.status, error_type(called)) == (status, kind)
    assert b"inner detail" not in called.body


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("path", ["/tokenize", "/decode"])
async def test_failures_of_the_tokenizer(path: str) -> None:
    edge = Edge()
    edge.tokenizers.error = TextRefused(TextRefusal.FAILED, 0)
    called = await call(edge.app, "POST", path, GOOD[path])
    assert (called.status, error_type(called)) == (422, "Tokenizer")


async def test_too_many_requests() -> None:
    edge = Edge(max_requests=1)
    edge.managers.gate = asyncio.Event()
    first = asyncio.create_task(call(edge.app, "POST", "/embed", TEXTS))
    await edge.managers.arrivals.get()
    refused = await call(edge.app, "POST", "/embed", TEXTS)
    edge.managers.gate.set()
    assert (await first).status == 200
    called = refused
    assert (called.status, error_type(called)) == (429, "Overloaded")
    assert int(called.headers["retry-after"]) >= 1


@pytest.mark.holds("Errors")
@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", "/embed", "POST"), ("PUT", "/", "GET, POST"), ("PUT", "/ping", "GET, POST")]
)
def test_other_methods(method: str, path: str, allowed: str) -> None:
    called = answered(method, path)
    assert (called.status, called.headers["allow"]) == (405, allowed)


@pytest.mark.holds("TEI's routes")
def test_info_has_teis_fields_at_the_top() -> None:
    info = json.loads(answered("GET", "/info").body)

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
    info = json.loads(answered("GET", "/info", is_loaded=False).body)
    assert (info["ready"], info["models"]) == (False, [])
