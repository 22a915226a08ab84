"""The supervisor's own page: health for everybody, metrics for whoever may see them."""

import pytest

from server.http.access import Hosts, Keys
from server.settings.api_keys import ApiKey, digest
from server.supervisor.monitor import make_monitor
from tests.server.edge import call

KEYS = [ApiKey("team", digest(b"sesame"))]


@pytest.mark.holds("API keys", "Metrics")
@pytest.mark.parametrize(
    ("needs_key", "given", "status"), [(False, None, 200), (True, None, 401), (True, "sesame", 200)]
)
async def test_metrics(needs_key: bool, given: str | None, status: int) -> None:
    page = make_monitor(lambda: "up 1\n", lambda: None, Keys(KEYS, metrics_auth=needs_key), Hosts(None))
    headers = {"authorization": f"Bearer {given}"} if given else {}

    answer = await call(page, "GET", "/metrics", headers=headers)

    assert answer.status == status
    assert (answer.body == b"up 1\n") == (status == 200)
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.error()["code"] == "invalid_api_key"


@pytest.mark.holds("API keys")
async def test_no_host_header_gets_around_the_key() -> None:
    page = make_monitor(lambda: "up 1\n", lambda: None, Keys(KEYS, metrics_auth=True), Hosts(None))

    assert (await call(page, "GET", "/metrics", headers={"host": "x/livez?"})).status == 401


@pytest.mark.holds("Readiness")
async def test_health_needs_no_key() -> None:
    page = make_monitor(lambda: "", lambda: "no engine is ready", Keys(KEYS, metrics_auth=True), Hosts(()))

    elsewhere = {"host": "page.example", "origin": "https://page.example"}
    assert (await call(page, "GET", "/livez", headers=elsewhere)).status == 200
    ready = await call(page, "GET", "/readyz", headers=elsewhere)
    assert (ready.status, ready.body) == (503, b"no engine is ready")


@pytest.mark.holds("Hosts and web pages")
async def test_metrics_of_a_server_on_localhost_are_not_for_web_pages() -> None:
    page = make_monitor(lambda: "up 1\n", lambda: None, Keys([], metrics_auth=False), Hosts(()))

    assert (await call(page, "GET", "/metrics", headers={"host": "localhost:9000"})).status == 200
    refused = await call(page, "GET", "/metrics", headers={"host": "rebound.example:9000"})
    assert (refused.status, refused.error()["code"]) == (403, "forbidden")


async def test_no_answer_leads_elsewhere() -> None:
    page = make_monitor(lambda: "", lambda: None, Keys((), metrics_auth=False), Hosts(None))

    assert (await call(page, "GET", "/livez/", headers={"host": "page.example"})).status == 404
    other = await call(page, "POST", "/livez")
    assert (other.status, other.headers["allow"]) == (405, "GET, HEAD")
