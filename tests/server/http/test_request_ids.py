"""Each answer names its request: as the client called it, or by a name of our own."""

import pytest

from server.dialects.table import ROUTES
from server.http.hosts import with_cors
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Edge, answered, call

PATH = "/v1/embeddings"
BODY = b'{"input":"a"}'
# of every kind: answered and refused, by the hot path and by FastAPI
REQUESTS = [
    ("POST", PATH, BODY, 200),
    ("POST", PATH, b"{}", 400),
    ("POST", "/embed", b'{"inputs":"a"}', 200),
    ("POST", "/embed", b"{}", 422),
    ("GET", "/livez", b"", 200),
    ("GET", PATH, b"", 405),
    ("GET", "/nowhere", b"", 404),
]


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
@pytest.mark.parametrize("name", ["x-request-id", "x-baseten-customer-request-id"])
def test_a_clients_own_name_comes_back(method: str, path: str, body: bytes, status: int, name: str) -> None:
    called = answered(method, path, body, {name: "Run-7.a_b"})
    assert (called.status, called.headers["x-request-id"]) == (status, "Run-7.a_b")


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("path", [route.path for route in ROUTES])
async def test_the_refusal_of_a_key_has_one_too(path: str) -> None:
    edge = Edge(keys=[ApiKey("one", digest(b"secret"))])
    called = await call(edge.app, "POST", path, b"{}", {"x-request-id": "mine"})
    assert (called.status, called.headers["x-request-id"]) == (401, "mine")


@pytest.mark.holds("Requests and answers")
def test_the_first_of_two_names_counts() -> None:
    called = answered("POST", PATH, BODY, {"x-baseten-customer-request-id": "second", "x-request-id": "first"})
    assert called.headers["x-request-id"] == "first"


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("unfit", ["", "two words", "tab\tbed", "a" * 129, "naïve", 'a"b', "a\x00b", "{}"])
def test_a_name_that_is_not_fit_for_a_log_is_not_taken(unfit: str) -> None:
    made = answered("POST", PATH, BODY, {"x-request-id": unfit}).headers["x-request-id"]
    assert made != unfit
    assert made.isalnum()


@pytest.mark.holds("Requests and answers")
async def test_those_that_are_made_differ() -> None:
    edges = [Edge() for _ in range(3)]  # as several frontends
    made = [(await call(edge.app, "POST", PATH, BODY)).headers["x-request-id"] for edge in edges for _ in range(20)]
    assert len(set(made)) == len(made) == 60


@pytest.mark.holds("Requests and answers")
async def test_what_never_became_a_request_has_none() -> None:
    """A browser's question beforehand; tests/server/http/test_http_server.py has the heads that are refused."""
    asked = {"origin": "https://page.example", "access-control-request-method": "POST"}
    called = await call(with_cors(Edge().app, ["*"]), "OPTIONS", PATH, b"", asked)
    assert called.status == 200
    assert "x-request-id" not in called.headers
