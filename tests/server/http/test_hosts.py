"""Which names a server answers to and which web pages it takes requests from, against rebinding and forged requests.

The last ones are about which pages a browser lets ask.
"""

import json
import re
from pathlib import Path

import pytest

import server
from server.dialects.answers import Answer, openai_error
from server.dialects.route import Call, Route
from server.frontend.parts import Part
from server.http.access import HEALTH_PATHS, Hosts, answered_hosts, with_cors
from server.http.body import Receive, Scope, Send
from server.requests.errors import Forbidden
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Called, Edge, answered, call

PATH = "/v1/embeddings"
BODY = b'{"input":"one"}'


def refused_header(hosts: Hosts, **headers: str) -> str | None:
    """The header that a POST is refused for; None if it is not."""
    try:
        hosts.check("POST", PATH, {name.encode(): value.encode("latin-1") for name, value in headers.items()})
    except Forbidden as error:
        return error.param
    return None


def ask(method: str, path: str, hosts: Hosts, **headers: str) -> Called:
    return answered(method, path, BODY if method == "POST" else b"", headers, hosts=hosts)


@pytest.mark.holds("Hosts and web pages")
@pytest.mark.parametrize(
    ("allowed", "hostname", "address", "has_keys", "answered"),
    [
        ((), "127.0.0.1", "127.0.0.1", False, ("127.0.0.1",)),
        ((), "embed.local", "127.0.0.2", False, ("embed.local",)),
        ((), "::1", "::1", False, ("::1",)),
        ((), "localhost", "::ffff:127.0.0.1", False, ("localhost",)),
        ((), "127.0.0.1", "127.0.0.1", True, None),  # a web page has no key
        ((), "0.0.0.0", "0.0.0.0", False, None),  # as in a container
        ((), "10.0.0.5", "10.0.0.5", False, None),
        (("a.example",), "0.0.0.0", "0.0.0.0", False, ("a.example",)),
        (("a.example",), "127.0.0.1", "127.0.0.1", True, ("a.example",)),
        (("a.example", "*"), "127.0.0.1", "127.0.0.1", False, None),
    ],
)
def test_what_is_checked_where(
    allowed: tuple[str, ...], hostname: str, address: str, has_keys: bool, answered: tuple[str, ...] | None
) -> None:
    assert answered_hosts(allowed, hostname=hostname, address=address, has_keys=has_keys) == answered


@pytest.mark.holds("Hosts and web pages")
@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LocalHost:80", "localhost.", "127.0.0.1", "127.0.0.1:8080", "127.9.8.7:1"),
        *("[::1]", "[::1]:8080", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]:80", "[fd00::5]:80"),
        *("embed.internal", "Embed.Internal.:443"),
        "",
    ],
)
def test_hosts_that_are_answered_to(host: str) -> None:
    assert refused_header(Hosts(("Embed.Internal", "fd00:0::5")), host=host) is None


@pytest.mark.holds("Hosts and web pages")
@pytest.mark.parametrize(
    "host",
    [
        *("page.example", "page.example:8080", "localhost.page.example", "127.0.0.1.page.example", "notlocalhost"),
        *("localhost@page.example", "page.example@localhost", "localhost,page.example", "localhost page.example"),
        *("localhost:80:80", "[::1", "::1", "[::1]x", "[page.example]", "127.0.0.1/", "localhost#", " localhost"),
        *("10.0.0.5", "128.0.0.1", "0.0.0.0", "[::]", "[::2]", "2130706433", "127.1", "x" * 5000, "\xff", ":", "."),
    ],
    ids=lambda host: host[:30],
)
def test_hosts_that_are_not(host: str) -> None:
    assert refused_header(Hosts(()), host=host) == "host"


@pytest.mark.holds("Hosts and web pages")
def test_a_request_without_either_header_is_no_browsers() -> None:
    assert refused_header(Hosts(())) is None


@pytest.mark.holds("Hosts and web pages", "CORS")
def test_stars_in_origins() -> None:
    hosts = Hosts((), origins=["https://*.example.org", "chrome-extension://*"])

    assert refused_header(hosts, origin="https://app.example.org") is None
    assert refused_header(hosts, origin="chrome-extension://abc") is None
    assert refused_header(hosts, origin="https://evil-example.org") == "origin"
    assert refused_header(Hosts(()), origin="") == "origin"


@pytest.mark.holds("Hosts and web pages", "CORS")
@pytest.mark.parametrize(
    ("origin", "is_taken"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:5173", True),
        ("https://embed.internal:8080", True),  # the server's own pages, as /docs
        ("https://app.example", True),
        ("https://app.example:444", False),
        ("http://app.example", False),
        ("https://page.example", False),
        ("https://localhost.page.example", False),
        ("null", False),  # a file, or a frame without rights
        ("", False),
        ("localhost", False),
        ("file://", False),
        ("file://localhost", False),
        ("chrome-extension://localhost", False),
        ("http://localhost http://page.example", False),
        ("http://localhost@page.example", False),
        ("http://localhost:80/page.example", False),
        ("http://" + "x" * 5000, False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_web_pages(origin: str, is_taken: bool) -> None:
    hosts = Hosts(("embed.internal",), origins=["https://app.example"])

    assert refused_header(hosts, host="localhost", origin=origin) == (None if is_taken else "origin")
    assert refused_header(Hosts(None), host="any", origin=origin) is None
    assert refused_header(Hosts((), origins=["*"]), host="localhost", origin=origin) is None


@pytest.mark.holds("Hosts and web pages", "Errors")
async def test_a_plain_text_post_of_a_web_page_is_not_computed() -> None:
    edge = Edge(hosts=Hosts(()))
    headers = {"host": "127.0.0.1:8080", "origin": "https://page.example", "content-type": "text/plain"}
    called, edge = await call(edge.app, "POST", PATH, BODY, headers), edge

    assert (called.status, called.error()["param"], called.error()["code"]) == (403, "origin", "forbidden")
    assert "--allowed-hosts" in called.error()["message"]
    assert "--cors-allow-origin" in called.error()["message"]
    assert b"page.example" not in called.body
    assert edge.tokenizers.asked == []


@pytest.mark.holds("Hosts and web pages", "Errors")
@pytest.mark.parametrize(("method", "path"), [("POST", PATH), ("GET", "/info"), ("GET", "/metrics"), ("GET", "/none")])
def test_a_name_that_was_bound_to_this_machine_reads_nothing(method: str, path: str) -> None:
    called = ask(method, path, Hosts(()), host="rebound.example:8080")

    assert (called.status, called.error()["param"]) == (403, "host")
    assert "--allowed-hosts" in called.error()["message"]
    assert ask(method, path, Hosts(()), host="localhost:8080").status != 403


@pytest.mark.holds("Hosts and web pages")
@pytest.mark.parametrize(
    ("header", "value", "status"),
    [("host", "rebound.example", 403), ("origin", "https://page.example", 403), ("host", "localhost", 202)],
)
def test_what_goes_on_to_another_process_is_checked_before(header: str, value: str, status: int) -> None:
    asked = []

    async def answer(call: Call) -> Answer:
        asked.append(call)
        return Answer(202, [], b"")

    part = Part()
    part.routes = [Route(path="/async_predict", answer=answer, error_shape=openai_error, summary="")]
    called = answered("POST", "/async_predict", b"{}", {header: value}, hosts=Hosts(()), parts={"jobs": part})
    assert (called.status, len(asked)) == (status, status == 202)


def test_teis_routes_refuse_in_their_own_shape() -> None:
    called = ask("POST", "/embed", Hosts(()), host="rebound.example")

    assert called.status == 403
    assert b'"error_type":"Unauthorized"' in called.body


@pytest.mark.holds("Hosts and web pages", "Readiness")
@pytest.mark.parametrize("path", sorted({*HEALTH_PATHS, "/"}))
def test_health_is_for_everybody(path: str) -> None:
    assert ask("GET", path, Hosts(()), host="rebound.example", origin="https://page.example").status in (200, 204)
    assert ask("HEAD", path, Hosts(()), host="rebound.example").status in (200, 204)


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
_OF_HTTP = {"allow", "cache-control", "connection", "content-encoding", "content-length", "content-type", "date"}
_OF_HTTP |= {"transfer-encoding", "vary", "www-authenticate"}
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
    read_only = {"authorization", "accept", "accept-encoding", "expect", "host", "request-timeout-ms"}  # of requests
    no_headers = {"null", "score", "list", "classify", "name", "filename"}  # the last two are of parts of a form

    written = written_headers() - _OF_HTTP - read_only - no_headers

    assert {"x-embedline-shape", "x-queue-time", "metadata", "x-ratelimit-reset-tokens"} <= written
    assert exposed == written
