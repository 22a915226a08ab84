"""What text-embeddings-inference's router says of errors, headers and the routes without a body, row by row, of ours.

It is in router/src/lib.rs, router/src/http/server.rs and docs/openapi.json there. Left out, with the reasons in
docs/api/tei.md: what differs on purpose. What an engine's faults and a full queue answer stands in test_routes.py, and
what a decoder refuses by the name of a field in test_bodies.py, test_tokens.py, test_predict.py, test_vertex.py and
test_rerank_refusals.py.
"""

import asyncio
import json
from typing import Any

import pytest

from server.commands import running
from server.http.access import with_cors
from server.settings.api_keys import ApiKey, digest
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.placement import place
from tests.server.asking import ask, tei_error
from tests.server.dialects.tei.peer_checks import CLASSIFY, EMBED, RANK, RERANK, SIMILAR, SPARSE
from tests.server.edge import Called, Edge, call, state_with

TIMES = ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")
FIVE = ["a"] * 5  # one more than a request may have
TEI_PATHS = {
    *("/info", "/health", "/metrics", "/predict", "/rerank", "/embed", "/embed_all", "/embed_sparse", "/similarity"),
    *("/tokenize", "/decode", "/v1/embeddings", "/vertex"),
}
EMPTY, WRONG, BACKEND = (400, "Empty"), (422, "Validation"), (424, "Backend")
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/embed", EMBED),
    ("/embed_all", EMBED),
    ("/embed_sparse", SPARSE),
    ("/predict", CLASSIFY),
    ("/tokenize", EMBED),
    ("/invocations", EMBED),
]
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], tuple[int, str]]] = [
    # nothing to compute
    *[(path, {"inputs": ""}, model, EMPTY) for path, model in ROUTES],
    *[(path, {"inputs": []}, model, EMPTY) for path, model in ROUTES if path != "/predict"],
    *[(path, {"inputs": ["a", ""]}, model, EMPTY) for path, model in ROUTES if path != "/predict"],
    ("/rerank", {"query": "", "texts": ["a", ""]}, RERANK, EMPTY),
    ("/decode", {"ids": [[]]}, EMBED, EMPTY),
    ("/vertex", {"instances": [{"inputs": ""}]}, EMBED, EMPTY),
    # too many items
    *[(path, {"inputs": FIVE}, model, WRONG) for path, model in ROUTES],
    # values that TEI does not take
    ("/embed", {"inputs": "a", "dimensions": -1}, EMBED, WRONG),
    ("/embed", {"inputs": "a", "prompt_name": "nobody's"}, EMBED, WRONG),
    ("/similarity", {"inputs": SIMILAR, "parameters": {"prompt_name": "nobody's"}}, EMBED, WRONG),
    ("/rerank", {**RANK, "raw_scores": "yes"}, RERANK, WRONG),
    ("/rerank", {**RANK, "return_text": 1}, RERANK, WRONG),
    # wrong shapes
    *[(path, {}, model, WRONG) for path, model in ROUTES],
    *[(path, {"inputs": value}, model, WRONG) for path, model in ROUTES for value in (None, 5, [1.5], [None], True)],
    ("/embed", {"inputs": [-1]}, EMBED, WRONG),
    ("/rerank", {"texts": ["a"]}, RERANK, WRONG),
    ("/similarity", {"inputs": {"sentences": ["a"]}}, EMBED, WRONG),
    ("/vertex", {"instances": [{"input": 5}]}, EMBED, WRONG),
    # models for something else
    *[(path, {"inputs": "a"}, CLASSIFY, BACKEND) for path in ("/embed", "/embed_all", "/embed_sparse")],
    *[(path, {"inputs": "a"}, RERANK, BACKEND) for path in ("/embed", "/embed_all", "/embed_sparse")],
    ("/similarity", {"inputs": SIMILAR}, CLASSIFY, BACKEND),
    ("/embed_sparse", {"inputs": "a"}, EMBED, BACKEND),
    ("/embed", {"inputs": "a"}, SPARSE, BACKEND),
    ("/predict", {"inputs": "a"}, EMBED, BACKEND),
    ("/rerank", RANK, CLASSIFY, BACKEND),
    ("/vertex", {"instances": [RANK]}, CLASSIFY, BACKEND),
]


@pytest.mark.holds("TEI's routes", "Errors")
@pytest.mark.parametrize(("path", "body", "model", "expected"), REFUSED)
def test_it_refuses_as_tei_does(
    path: str, body: dict[str, Any], model: dict[str, Any], expected: tuple[int, str]
) -> None:
    called = ask(path, body, **model)

    status, kind, message = tei_error(called)
    assert (status, kind) == expected
    assert message.endswith("cannot be empty") or kind != "Empty"
    assert called.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"input": ""}, "Empty"),
        ({"input": []}, "Empty"),
        ({"input": FIVE}, "Validation"),
        ({"input": "a", "dimensions": 9}, "Validation"),
        ({"input": "a", "encoding_format": "hex"}, "Validation"),
        ({}, "Validation"),
    ],
)
def test_what_its_openai_route_has_at_the_top_of_an_error(body: dict[str, Any], kind: str) -> None:
    called = ask("/v1/embeddings", body, **EMBED)
    error = json.loads(called.body)

    assert (error["type"], error["code"]) == (kind, called.status)
    assert isinstance(error["message"], str)


@pytest.mark.parametrize(
    ("path", "body", "model", "num_characters", "num_tokens"),
    [
        ("/embed", {"inputs": ["abc", "de"]}, EMBED, 5, 5),
        ("/embed_all", {"inputs": ["abc", "de"]}, EMBED, 5, 5),
        ("/embed_sparse", {"inputs": ["abc", "de"]}, SPARSE, 5, 5),
        ("/predict", {"inputs": ["abc", "de"]}, CLASSIFY, 5, 5),
        ("/rerank", RANK, RERANK, 2 * 3 + 7, 2 * 3 + 7),
        ("/similarity", {"inputs": SIMILAR}, EMBED, 6, 6),
        ("/", {"inputs": ["abc", "de"]}, EMBED, 5, 5),
        ("/invocations", {"inputs": "abc"}, CLASSIFY, 3, 3),
    ],
)
def test_headers_of_an_answer(
    path: str, body: dict[str, Any], model: dict[str, Any], num_characters: int, num_tokens: int
) -> None:
    headers = ask(path, body, **model).headers

    assert headers["x-compute-type"] == "gpu+optimized"
    assert headers["x-compute-characters"] == str(num_characters)
    assert headers["x-compute-tokens"] == str(num_tokens)
    assert all(headers[name].isdigit() for name in TIMES)


def get(path: str, headers: dict[str, str] | None = None, *, is_loaded: bool = True, loaded: Any = None) -> Called:
    async def run() -> Called:
        edge = Edge(is_loaded=is_loaded, loaded=loaded, keys=[ApiKey("one", digest(b"secret"))])
        return await call(with_cors(edge.app, ["*"]), "GET", path, headers=headers)

    return asyncio.run(run())


KEY = {"authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("model", "kind", "facts"),
    [
        (EMBED, "embedding", {"pooling"}),
        (SPARSE, "embedding", {"pooling"}),
        (CLASSIFY, "classifier", {"id2label", "label2id"}),
        (RERANK, "reranker", {"id2label", "label2id"}),
    ],
)
def test_the_fields_of_info(model: dict[str, Any], kind: str, facts: set[str]) -> None:
    told = {name: value for name, value in model.items() if name in ("outputs", "task", "labels")}
    settings = Settings(models=(ModelSettings(model_id="any"),), topology="spread")
    limits = running._limits(settings, place(settings, []))
    info = json.loads(get("/info", KEY, loaded=state_with(**told) | {"limits": limits}).body)

    assert {name: set(value) for name, value in info["model_type"].items()} == {kind: facts}
    assert all(isinstance(info[name], str) for name in ("model_id", "model_dtype", "served_model_name", "version"))
    assert all(
        isinstance(info[name], int) for name in ("max_input_length", "max_batch_tokens", "max_client_batch_size")
    )
    assert isinstance(info["auto_truncate"], bool)
    assert {"model_sha", "max_concurrent_requests", "tokenization_workers", "max_batch_requests"} <= info.keys()
    assert {"sha", "docker_label"} <= info.keys()
    assert info["topology"] == {"name": "spread", "reason": "--topology spread"}  # ours


@pytest.mark.parametrize("path", ["/health", "/", "/ping", "/metrics"])
def test_what_needs_no_key(path: str) -> None:
    assert get(path).status == 200
    assert get("/info").status == 401


def test_health_of_a_server_that_is_not_ready() -> None:
    called = get("/health", is_loaded=False)
    error = json.loads(called.body)

    assert (called.status, error["error_type"]) == (503, "Unhealthy")
    assert isinstance(error["error"], str)
    assert {get(path, is_loaded=False).status for path in ("/", "/ping")} == {503}


def test_metrics_are_text() -> None:
    assert get("/metrics").headers["content-type"].startswith("text/plain")


def test_its_paths_are_on_the_page_of_the_api() -> None:
    assert json.loads(get("/api-doc/openapi.json", KEY).body)["paths"].keys() >= TEI_PATHS


def test_web_pages_of_any_origin_may_ask() -> None:
    assert get("/health", {"origin": "https://example.org"}).headers["access-control-allow-origin"] == "*"
