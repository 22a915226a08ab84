"""Requests that are sent ahead: all are answered in order, a refusal comes in its turn, and what waits is bounded."""

import gc

import pytest

from server.http.h1.connection import Awaited, Exchange
from server.http.h1.framing import MAX_HEAD_BYTES
from server.requests.errors import HeadTooLarge, MalformedBody
from tests.server.http.bare import Bare, turns
from tests.server.http.running import CHUNKED, GET, POST, App, Running

READ = 64 * 1024
UPGRADE = b"GET /%b HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"


@pytest.mark.holds("Requests and answers")
@pytest.mark.both_loops
async def test_many_requests_that_are_sent_ahead_are_all_answered(running: Running) -> None:
    """Also where a read ends in the middle of a head, after bodies that are longer than a head may be."""
    async with running.client() as client:
        bodies = [b"%d " % index * 100 for index in range(1500)]
        client.send(*(POST % (b"echo", len(body)) + body for body in bodies))
        for body in bodies:
            assert await client.answer() == (200, body)
    assert running.refused == []


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("size", [1, 7, 50, 1000])
async def test_however_the_network_cuts_them_up(server: Bare, app: App, size: int) -> None:
    client = server.connect()
    kinds = [
        GET % b"a/now",
        UPGRADE % b"now",
        POST % (b"echo", 3) + b"abc",
        CHUNKED % b"echo" + b"1\r\nx\r\n0\r\n\r\n",
    ]
    sent = b"".join([*kinds, b"\r\n", *kinds])
    app.gate.set()
    await client.send(*(sent[start : start + size] for start in range(0, len(sent), size)))
    await turns(40)
    assert app.paths == ["/a/now", "/now", "/echo", "/echo"] * 2
    assert client.statuses() == [200] * 8


@pytest.mark.holds("Requests and answers")
@pytest.mark.both_loops
async def test_a_refusal_comes_after_the_answers_that_are_due(running: Running) -> None:
    for refused in (b"what is this\r\n\r\n", b"GET /now HTTP/1.1\r\nlong: " + b"x" * 33_000 + b"\r\n\r\n"):
        async with running.client() as client:
            client.send(GET % b"slow", GET % b"now", refused, GET % b"never")
            await running.app.waiting.get()
            running.app.gate.set()
            assert [await client.answer(), await client.answer()] == [(200, b"/slow"), (200, b"/now")]
            assert (await client.answer())[0] in (400, 431)
            assert await client.rest() == b""
            running.app.gate.clear()
    assert [type(error) for error in running.refused] == [MalformedBody, HeadTooLarge]
    assert "/never" not in running.app.paths


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("path", [b"wait", b"now"])
async def test_a_body_that_can_not_be_read_gets_one_answer(server: Bare, app: App, path: bytes) -> None:
    client = server.connect()
    await client.send(CHUNKED % path, b"2\r\nhi\r\nno length\r\n" + GET % b"never")
    assert client.statuses() == ([400] if path == b"wait" else [200])
    assert not client.is_open
    await turns()
    assert app.paths == [f"/{path.decode()}"]
    assert not server.server._connections.tasks()


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("kind", [GET, UPGRADE], ids=["get", "upgrade"])
async def test_what_is_sent_ahead_waits_as_bytes_and_is_bounded(server: Bare, app: App, kind: bytes) -> None:
    """A request that waits costs its bytes and nothing more; over a head's worth of them the connection is not read."""
    client = server.connect()
    ahead = (kind % b"now") * (READ // len(kind % b"now"))
    await client.send(GET % b"slow" + ahead)
    num_sent = len(ahead)
    while not client.transport.is_paused and num_sent < 10 * READ:
        await client.send(ahead)
        num_sent += len(ahead)

    assert num_sent <= MAX_HEAD_BYTES + READ
    assert client.num_kept <= num_sent
    assert num_cycles() <= 1
    app.gate.set()
    while client.num_kept > MAX_HEAD_BYTES:
        assert client.transport.is_paused  # although each request in between asks for reading
        await turns(1)
    assert not client.transport.is_paused
    while client.num_kept:
        await turns(1)
    await turns()
    assert client.statuses() == [200] * len(app.paths)
    assert len(app.paths) == 1 + num_sent // len(kind % b"now")


def num_cycles() -> int:
    """Requests that are in memory. isinstance would read `__class__`, where deprecated objects warn."""
    gc.collect()
    return sum(issubclass(type(one), Exchange) for one in gc.get_objects())


@pytest.mark.holds("Limits")
@pytest.mark.both_loops
async def test_a_head_behind_a_request_is_not_refused_before_it_is_too_long(running: Running) -> None:
    """Bytes of the request before it do not count."""
    async with running.client() as client:
        body = b"x" * 40_000
        for _ in range(2):
            client.send(POST % (b"echo", len(body)), body, b"GET /now HTTP/1.1\r\nhos")
            assert await client.answer() == (200, body)
            client.send(b"t: a\r\nlong: ", b"x" * 32_000, b"\r\n\r\n")
            assert await client.answer() == (200, b"/now")


async def test_the_time_of_a_head_begins_with_the_answer_before_it(server: Bare, app: App) -> None:
    client = server.connect()
    await client.send(GET % b"slow" + b"GET /no")
    assert client.protocol.awaited is None
    app.gate.set()
    await turns()
    assert client.protocol.awaited is Awaited.HEAD
    await client.send(b"w HTTP/1.1\r\nhost: a\r\n\r\n")
    assert client.statuses() == [200, 200]
    assert client.protocol.awaited is Awaited.REQUEST
