"""Heads that are refused: too large, too slow, of unclear meaning."""

import asyncio
import contextlib
import json

import pytest

from server.http.protocol import Protocol
from server.requests.errors import HeadTooLarge
from tests.server.http.running import GET, Running

pytestmark = pytest.mark.both_loops


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ncontent-length: 6",
        b"content-length: 5\r\ncontent-length: 5",
        b"content-length: 5, 5",
        b"content-length: five",
        b"content-length: -5",
        b"content-length: +5",
        b"content-length: 5.0",
        b"content-length:",
        b"content-length: 99999999999999999999999999",
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\n\r\nnonsense",
        b"no header",
    ],
)
async def test_a_body_of_unclear_length_is_refused_by_the_parser(running: Running, head: bytes) -> None:
    """So that whoever reads content-length may trust it."""
    async with running.client() as client:
        client.send(b"POST /slow HTTP/1.1\r\nhost: a\r\n" + head + b"\r\n\r\nhello")
        assert (await client.rest()).startswith(b"HTTP/1.1 400")


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /now HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /now HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n", b"400"),
        (b"POST /echo HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n", b"400"),
        (b"GET /now HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n", b"200"),
        (b"GET /now HTTP/1.0\r\n\r\n", b"200"),
    ],
)
async def test_a_request_names_its_host_once(running: Running, head: bytes, status: bytes) -> None:
    """RFC 9112, section 3.2; HTTP/1.0 had no such header."""
    async with running.client() as client:
        client.send(head)
        assert (await client.rest()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    "head",
    [
        b"GET /now HTTP/1.1\r\nhost: a\r\nlong: " + b"x" * 33_000,  # and no end in sight
        b"GET /now HTTP/1.1\r\nhost: a\r\nlong: " + b"x" * 33_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 33_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /" + b"x" * 33_000,
        b"GET /now HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"GET /now HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
    ],
    ids=["endless header", "long header", "long path", "endless path", "many headers", "endless headers"],
)
async def test_a_head_that_is_too_large_is_refused(running: Running, head: bytes) -> None:
    async with running.client() as client:
        client.send(GET % b"now")  # the limits are each request's own
        assert await client.answer() == (200, b"/now")
        client.send(head)
        with contextlib.suppress(ConnectionError):
            assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
    assert running.app.paths == ["/now"]
    assert [type(error) for error in running.refused] == [HeadTooLarge]


@pytest.mark.holds("Errors")
async def test_what_is_refused_before_its_route_is_known_has_openais_shape(running: Running) -> None:
    for head, status in (
        (b"GET /embed HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431),
        (b"what is this\r\n\r\n", 400),
    ):
        async with running.client() as client:
            client.send(head)
            answered, body = await client.answer()
            assert answered == status
            assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
            assert await client.rest() == b""  # and nothing is answered there any more


@pytest.mark.holds("Limits")
async def test_a_head_within_the_limits_is_taken_in_any_pieces(running: Running) -> None:
    async with running.client() as client:
        request = (
            b"GET /now HTTP/1.1\r\nhost: a\r\n" + b"name: value\r\n" * 98 + b"long: " + b"x" * 29_000 + b"\r\n\r\n"
        )
        for start in range(0, len(request), 5_000):
            client.send(request[start : start + 5_000])
            await client.writer.drain()
            await asyncio.sleep(0)
        assert await client.answer() == (200, b"/now")


@pytest.mark.holds("Limits")
async def test_a_head_that_does_not_come_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Protocol, "head_seconds", 0.05)
    async with running.client() as client:
        client.send(b"GET /now HTT")
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
    async with running.client() as client:  # the time runs for the head alone
        client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\na")
        await running.app.reading.wait()
        async with running.client() as other:
            other.send(b"GET /now HTT")
            assert (await other.rest()).startswith(b"HTTP/1.1 408 ")  # by now its time would be over, too
        client.send(b"b")
        assert await client.answer() == (200, b"ab")
