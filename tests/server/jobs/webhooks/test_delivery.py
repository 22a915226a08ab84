"""One attempt, against a receiver on this machine."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import pytest
import pytest_asyncio

from server.features.jobs.webhook_addresses import AddressRules
from server.features.jobs.webhooks import Outcome, Sender
from tests.server.jobs.webhooks.receiver import FAILED, OK, SILENT, receiving, redirect

BODY = b'{"request_id":"r1"}'
HEADERS = [(b"webhook-id", b"r1")]


@pytest_asyncio.fixture
async def sender() -> AsyncIterator[Sender]:
    sender = Sender(AddressRules(allows_private=True), max_connections=4, timeout_s=30)
    yield sender
    await sender.close()


async def test_a_delivered_webhook_has_the_headers_and_the_body_as_given(sender: Sender) -> None:
    async with receiving(OK) as receiver:
        assert await sender.send(receiver.url, HEADERS, BODY) == Outcome(True)
    (received,) = receiver.received
    assert (received.path, received.body, received.headers["webhook-id"]) == ("/hook", BODY, "r1")
    assert received.headers["host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (FAILED, Outcome(False, reason="status 500")),
        (b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n", Outcome(False, retries=False, reason="status 410")),
        (redirect("/other", 302), Outcome(False, reason="status 302")),
        (redirect("/again"), Outcome(False, reason="too many redirects")),
        (b"nonsense\r\n\r\n", Outcome(False, reason="RemoteProtocolError")),
    ],
    ids=["500", "gone", "302", "a loop", "not HTTP"],
)
async def test_what_a_receiver_answers_otherwise_is_no_delivery(
    sender: Sender, answer: bytes, outcome: Outcome
) -> None:
    async with receiving(answer) as receiver:
        assert await sender.send(receiver.url, HEADERS, BODY) == outcome


async def test_a_redirect_repeats_the_same_post(sender: Sender) -> None:
    async with receiving(OK) as second, receiving(redirect(second.url + "/moved", 308)) as first:
        assert await sender.send(first.url, HEADERS, BODY) == Outcome(True)
    assert [(one.path, one.body) for one in second.received] == [("/hook/moved", BODY)]


@dataclass(frozen=True, slots=True)
class OnlyThisMachine(AddressRules):
    """As if this machine were the open internet, and nothing else."""

    def allows(self, address: IPv4Address | IPv6Address) -> bool:
        return address.is_loopback


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("https://10.0.0.1:8443/", "a webhook's host has no address that is allowed"),
        ("http://10.0.0.1:8000/", "a webhook's URL must begin with https://"),
        ("https://user@example.com/", "a webhook's URL may not have a user or a password in it"),
        ("https://[", "a webhook was redirected to a URL that can't be read"),
        ("file:///etc/passwd", "a webhook's URL must begin with https:// and name a host"),
    ],
)
@pytest.mark.holds("Webhooks reach public addresses alone")
async def test_a_redirect_is_checked_as_the_first_url_is(location: str, reason: str) -> None:
    sender = Sender(OnlyThisMachine(allows_private=True), max_connections=1, timeout_s=30)
    async with receiving(redirect(location)) as receiver:
        assert await sender.send(receiver.url, HEADERS, BODY) == Outcome(False, retries=False, reason=reason)
    await sender.close()


async def test_a_silent_receiver_costs_no_more_than_the_time_limit() -> None:
    sender = Sender(AddressRules(allows_private=True), max_connections=1, timeout_s=0.05)
    async with receiving(SILENT) as receiver:
        assert await sender.send(receiver.url, HEADERS, BODY) == Outcome(False, reason="no answer within 0.05 s")
    await sender.close()


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 1000000000\r\n\r\n" + b"x" * 200_000,
        b"content-length: 9\r\n\r\nx",
        b"transfer-encoding: chunked\r\n\r\nnonsense\r\n",
    ],
    ids=["long", "stalled", "broken"],
)
async def test_the_status_alone_tells_of_a_delivery(sender: Sender, rest: bytes) -> None:
    async with receiving(b"HTTP/1.1 200 OK\r\n" + rest) as receiver:
        assert await sender.send(receiver.url, HEADERS, BODY) == Outcome(True)


async def test_nobody_listening_is_a_failed_attempt(sender: Sender) -> None:
    async with receiving(OK) as receiver:
        url = receiver.url
    assert await sender.send(url, HEADERS, BODY) == Outcome(False, reason="ConnectError")
