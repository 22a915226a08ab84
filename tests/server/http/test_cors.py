"""Which pages a browser lets ask."""

import json
import re
from pathlib import Path

import pytest

import server
from server.http.body import Receive, Scope, Send
from server.http.hosts import with_cors
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Edge, call

ORIGIN = "https://page.example"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.mark.holds("CORS")
def test_off_unless_asked_for() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    assert with_cors(app, []) is app


@pytest.mark.holds("CORS")
@pytest.mark.parametrize(
    ("origins", "allowed"),
    [([ORIGIN], ORIGIN), (["*"], "*"), (["https://other.example"], None), (["https://*.example"], ORIGIN)],
)
async def test_a_browser_asks_first_and_needs_no_key_for_that(origins: list[str], allowed: str | None) -> None:
    app = with_cors(Edge(keys=[ApiKey("team", digest(b"sesame"))]).app, origins)

    preflight = await call(app, "OPTIONS", "/v1/embeddings", headers=PREFLIGHT)

    assert preflight.headers.get("access-control-allow-origin") == allowed
    assert preflight.status == (200 if allowed else 400)
    if allowed:
        assert "authorization" in preflight.headers["access-control-allow-headers"]


@pytest.mark.holds("CORS")
async def test_answers_and_errors_can_be_read_by_the_page() -> None:
    app = with_cors(Edge(keys=[ApiKey("team", digest(b"sesame"))]).app, [ORIGIN])
    body = json.dumps({"input": "a", "model": "m"}).encode()

    answered = await call(app, "POST", "/v1/embeddings", body, {"origin": ORIGIN, "authorization": "Bearer sesame"})
    refused = await call(app, "POST", "/v1/embeddings", body, {"origin": ORIGIN})

    assert (answered.status, refused.status) == (200, 401)
    for answer in answered, refused:
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-embedline-shape" in answer.headers["access-control-expose-headers"]


# Headers of HTTP itself: a page may read them anyway, or they are about the connection.
_OF_HTTP = {
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "transfer-encoding",
    "vary",
    "www-authenticate",
}
_WRITTEN = re.compile(r'\(b"([a-z]+(?:-[a-z0-9]+)*)",\s')


def written_headers() -> set[str]:
    """The headers that the source puts into answers: pairs of bytes in a list of headers. Jobs write none."""
    folder = Path(server.__file__).parent
    files = (path for path in folder.rglob("*.py") if not path.is_relative_to(folder / "features" / "jobs"))
    return {name for path in files for name in _WRITTEN.findall(path.read_text())}


@pytest.mark.holds("CORS")
async def test_a_page_may_read_every_header_that_answers_have() -> None:
    called = await call(with_cors(Edge().app, [ORIGIN]), "GET", "/livez", headers={"origin": ORIGIN})
    exposed = set(called.headers["access-control-expose-headers"].split(", "))
    read_only = {"authorization", "accept", "accept-encoding", "host", "request-timeout-ms"}  # of requests
    no_headers = {"null", "score", "name", "filename"}  # the last two are parameters of parts of a form

    written = written_headers() - _OF_HTTP - read_only - no_headers

    assert {"x-embedline-shape", "x-queue-time", "metadata", "x-ratelimit-reset-tokens"} <= written
    assert exposed == written
