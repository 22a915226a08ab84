"""What holds for answers of every route: JSON unless rows are asked for raw, one shape of error, the request's id."""

import json

import pytest

from server.dialects.table import ROUTES
from server.http.access import with_cors
from server.requests.errors import BodyTooSlow, HeadTooLarge, InvalidRequest, MalformedBody, RequestError
from tests.server.edge import ERROR_KEYS, Called, Edge, answered, call, good_body, state_with_everything

PATHS = [route.path for route in ROUTES]
RAW = {route.path for route in ROUTES if route.raw_answer}
ERROR_SHAPES = {route.path: route.error_shape for route in ROUTES}
EMBEDDINGS, BODY = "/v1/embeddings", b'{"input":"a"}'
NEEDS_NOTHING = {path for path in PATHS if path.startswith("/api/")}  # Ollama's clients load a model with an empty body


def ask(method: str, path: str, body: bytes = b"", **headers: str) -> Called:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return answered(method, path, body, named, loaded=state_with_everything())


@pytest.mark.holds("TEI's routes")
@pytest.mark.parametrize("path", PATHS)
def test_rows_go_out_raw_where_that_is_asked_for_and_all_else_is_json(path: str) -> None:
    called = ask("POST", path, good_body(path), accept="application/octet-stream")

    assert called.status == 200
    assert called.headers["content-type"] == f"application/{'octet-stream' if path in RAW else 'json'}"
    if path in RAW:
        assert "x-embedline-shape" in called.headers
        assert len(called.body) % 4 == 0
    else:
        json.loads(called.body)


@pytest.mark.holds("TEI's routes", "Errors")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"{}", b"{", b"[]"])
def test_errors_are_json_in_the_routes_own_shape_also_where_raw_rows_are_asked_for(path: str, body: bytes) -> None:
    called = ask("POST", path, body, accept="application/octet-stream")

    if body == b"{}" and path in NEEDS_NOTHING:
        assert called.status == 200
        return
    assert called.headers["content-type"] == "application/json"
    expected = ERROR_SHAPES[path](MalformedBody("no JSON") if body == b"{" else InvalidRequest("a field lacks"))
    assert json.loads(called.body).keys() == json.loads(bytes(expected.body)).keys()
    assert called.status == expected.status


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/tokenize", "/livez", "/nowhere"])
def test_unknown_paths_and_methods_are_refused_in_openais_shape_wherever(path: str) -> None:
    called = ask("DELETE", path)

    assert called.status == (404 if path == "/nowhere" else 405)
    assert json.loads(called.body).keys() == ERROR_KEYS
    assert called.error()["code"] == ("unknown_url" if path == "/nowhere" else "method_not_supported")


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(
    "path", ["/", "/livez", "/readyz", "/health", "/ping", "/-/healthz", "/info", "/load", "/v1/models", "/metrics"]
)
def test_head_is_answered_as_get(path: str) -> None:
    """As balancers ask; tests/server_e2e/edge/test_bad_input.py shows that no body goes out."""
    assert ask("HEAD", path).status == ask("GET", path).status == 200


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("path", ["/livez/", "/info/", "/docs/", "/v1/models/"])
def test_no_answer_leads_to_where_a_client_says(path: str) -> None:
    called = ask("GET", path, host="elsewhere.example")
    assert (called.status, "location" in called.headers) == (200, False)


@pytest.mark.holds("Truncation")
@pytest.mark.parametrize("path", PATHS)
def test_what_was_cut_is_said_where_rows_are_made(path: str) -> None:
    header = ask("POST", path, good_body(path)).headers.get("x-embedline-truncated-inputs")
    without = ("/tokenize", "/decode", "/detokenize", "/v1/tokenize", "/v1/detokenize", "/api/show")
    assert (header is None) == (path in without)


@pytest.mark.holds("OpenAI's route")
def test_usage_says_how_many_texts_were_cut() -> None:
    called = ask("POST", "/v1/embeddings", json.dumps({"input": ["a", "b" * 17, "c" * 16, "d" * 99]}).encode())

    assert json.loads(called.body)["usage"]["truncated_inputs"] == 2
    assert called.headers["x-embedline-truncated-inputs"] == "2"


@pytest.mark.holds("The request log")
@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (HeadTooLarge("too large"), "431", "head"),
        (BodyTooSlow("too slow"), "408", "slow_body"),
        (MalformedBody("no HTTP"), "400", "malformed"),
    ],
)
async def test_what_never_became_a_request_is_counted_too(error: RequestError, status: str, reason: str) -> None:
    """And so has a line in the log, which hears of all that is counted."""
    edge = Edge()
    edge.app.refused(error)
    counts: list[list[object]] = edge.metrics.drain()["counts"]
    assert ["embedline_requests_total", "other", "none", status, 1] in counts
    assert ["embedline_rejected_total", reason, 1] in counts


@pytest.mark.holds("Network access")
def test_the_viewer_comes_from_a_public_network_and_the_description_does_not() -> None:
    assert b"https://cdn." in ask("GET", "/docs").body
    assert b"://" not in ask("GET", "/openapi.json").body.replace(b"://huggingface.github.io", b"")


# of every kind: answered and refused, by the hot path and by FastAPI
REQUESTS = [
    ("POST", EMBEDDINGS, BODY, 200),
    ("POST", EMBEDDINGS, b"{}", 400),
    ("POST", "/embed", b'{"inputs":"a"}', 200),
    ("POST", "/embed", b"{}", 422),
    ("GET", "/livez", b"", 200),
    ("GET", EMBEDDINGS, b"", 405),
    ("GET", "/nowhere", b"", 404),
]


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
@pytest.mark.parametrize("name", ["x-request-id", "x-baseten-customer-request-id"])
def test_a_clients_own_name_comes_back(method: str, path: str, body: bytes, status: int, name: str) -> None:
    called = answered(method, path, body, {name: "Run-7.a_b"})
    assert (called.status, called.headers["x-request-id"]) == (status, "Run-7.a_b")


@pytest.mark.holds("Requests and answers")
def test_the_first_of_two_names_counts() -> None:
    called = answered("POST", EMBEDDINGS, BODY, {"x-baseten-customer-request-id": "second", "x-request-id": "first"})
    assert called.headers["x-request-id"] == "first"


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("unfit", ["", "two words", "tab\tbed", "a" * 129, "naïve", 'a"b', "a\x00b", "{}"])
def test_a_name_that_is_not_fit_for_a_log_is_not_taken(unfit: str) -> None:
    made = answered("POST", EMBEDDINGS, BODY, {"x-request-id": unfit}).headers["x-request-id"]
    assert made != unfit
    assert made.isalnum()


@pytest.mark.holds("Requests and answers")
async def test_those_that_are_made_differ() -> None:
    edges = [Edge() for _ in range(3)]  # as several frontends
    made = [
        (await call(edge.app, "POST", EMBEDDINGS, BODY)).headers["x-request-id"] for edge in edges for _ in range(20)
    ]
    assert len(set(made)) == len(made) == 60


@pytest.mark.holds("Requests and answers")
async def test_what_never_became_a_request_has_none() -> None:
    """A browser's question beforehand; tests/server/http/connection/test_heads.py has the heads that are refused."""
    asked = {"origin": "https://page.example", "access-control-request-method": "POST"}
    called = await call(with_cors(Edge().app, ["*"]), "OPTIONS", EMBEDDINGS, b"", asked)
    assert called.status == 200
    assert "x-request-id" not in called.headers
