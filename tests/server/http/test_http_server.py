"""The HTTP server around any application: connections, clients that leave, and an end that loses nothing."""

import asyncio
import contextlib
import logging

import pytest

from server.http.h1 import connection
from server.http.h1.connection import AnswerClock
from server.http.h1.protocol import HttpProtocol
from tests.server.http.running import GET, POST, Running
from tests.server_e2e.running import PATIENCE

pytestmark = pytest.mark.both_loops


@pytest.mark.holds("Cancellation")
async def test_a_client_that_leaves_ends_the_work_for_it(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for path in (b"wait", b"slow"):  # whether the handler lets itself be cancelled or has last words
        async with running.client() as client:
            client.send(GET % path)
            await running.app.waiting.get()
        assert await running.app.cancelled.get() == ()
    async with running.client() as client:  # others go on
        client.send(GET % b"now")
        assert await client.answer() == (200, b"/now")
    await running.server.stop(10)
    assert caplog.records == []


@pytest.mark.holds("Cancellation")
async def test_a_client_that_leaves_after_a_large_body_is_missed_too(running: Running) -> None:
    """Over so much the connection is not read for a while."""
    body = b"x" * 300_000
    async with running.client() as client:
        client.send(b"POST /wait HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % len(body), body)
        await running.app.waiting.get()
    await asyncio.wait_for(running.app.cancelled.get(), PATIENCE)


@pytest.mark.holds("Cancellation")
async def test_a_client_that_closes_its_sending_half_is_gone_too(running: Running) -> None:
    async with running.client() as client:
        client.send(GET % b"wait")
        await running.app.waiting.get()
        client.writer.write_eof()
        await running.app.cancelled.get()
        assert await client.rest() == b""


async def test_a_handler_that_fails_is_logged_and_its_client_is_not_left_waiting(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with running.client() as client:
        client.send(GET % b"fail")
        assert await client.rest() == b""
    async with running.client() as client:
        client.send(GET % b"now")
        assert await client.answer() == (200, b"/now")
    await running.server.stop(10)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


UPGRADE = b"POST /echo HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("size", [5, 300_000])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_an_offer_to_upgrade_is_declined_and_the_body_is_read(
    running: Running, size: int, is_chunked: bool
) -> None:
    """Java's client offers HTTP/2 with every request, one with a body too."""
    body = bytes(range(256)) * (size // 256) + b"hello"
    length = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(body)
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    async with running.client() as client:
        client.send(UPGRADE, length, b"\r\n\r\n", sent)
        assert await client.answer() == (200, body)
        client.send(UPGRADE, length, b"\r\n\r\n")
        await client.writer.drain()
        client.send(sent)
        assert await client.answer() == (200, body)
        client.send(GET % b"now")
        assert await client.answer() == (200, b"/now")


async def test_a_web_socket_is_a_usual_request_here_and_a_tunnel_is_none(running: Running) -> None:
    async with running.client() as client:
        client.send(b"GET /now HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        assert await client.answer() == (200, b"/now")
        client.send(b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400")
    assert running.app.paths == ["/now"]


@pytest.mark.holds("Clients that do not read their answers are disconnected", "Limits")
@pytest.mark.parametrize(("num_requests", "size"), [(1, 20_000_000), (400, 60_000)], ids=["one large answer", "many"])
async def test_who_does_not_read_its_answers_is_cut_off(
    running: Running, monkeypatch: pytest.MonkeyPatch, num_requests: int, size: int
) -> None:
    """What waits in the connection's buffer is let go too."""
    monkeypatch.setattr(HttpProtocol, "answer_seconds", 0.05)
    async with running.client() as client:
        head = b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size
        client.send(*[head, b"x" * size] * num_requests)
        await running.app.waiting.get()
        await running.server._connections.empty.wait()
    monkeypatch.setattr(HttpProtocol, "answer_seconds", PATIENCE)
    async with running.client() as client:
        client.send(GET % b"now")
        assert await client.answer() == (200, b"/now")


async def test_who_reads_its_answers_is_left_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    size, num_begun = 20_000_000, 0

    class Counted(AnswerClock):
        def written(self) -> None:
            nonlocal num_begun
            num_begun += 1
            super().written()

    monkeypatch.setattr(connection, "AnswerClock", Counted)
    async with running.client() as client:
        for _ in range(2):
            client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size, b"x" * size)
            assert len((await client.answer())[1]) == size
            (accepted,) = running.server._connections.established()
            client.send(GET % b"now")
            assert await client.answer() == (200, b"/now")
            assert accepted.answer_clock._timer is None
        assert num_begun >= 2  # as not all of it fits into a buffer


@pytest.mark.holds("Limits")
async def test_a_connection_that_says_nothing_is_closed(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpProtocol, "head_seconds", 0.05)  # less than a connection may be idle between requests
    async with running.client() as client:
        assert await client.rest() == b""
    assert running.refused == []


@pytest.mark.holds("Limits")
async def test_where_there_are_too_many_connections_the_oldest_idle_one_gives_way(running: Running) -> None:
    await running.server.stop(0)
    running.listen(max_connections=3)
    await running.server.start()
    async with contextlib.AsyncExitStack() as stack:
        waiting, idle, *others = [await stack.enter_async_context(running.client()) for _ in range(3)]
        for client in (idle, *others):
            client.send(GET % b"now")
            await client.answer()
        waiting.send(GET % b"later")
        await running.app.waiting.get()
        newest = await stack.enter_async_context(running.client())

        assert await idle.rest() == b""
        for client in (newest, *others):
            client.send(GET % b"now")
            assert await client.answer() == (200, b"/now")
        assert running.server.num_connections == 3
        running.app.gate.set()
        assert await waiting.answer() == (200, b"/later")


@pytest.mark.holds("Limits", "Every bound")
async def test_where_no_connection_is_idle_one_that_waits_for_its_client_gives_way(running: Running) -> None:
    await running.server.stop(0)
    running.listen(max_connections=2)
    await running.server.start()
    async with contextlib.AsyncExitStack() as stack:
        waiting, silent = [await stack.enter_async_context(running.client()) for _ in range(2)]
        waiting.send(GET % b"later")
        await running.app.waiting.get()
        silent.send(POST % (b"echo", 10), b"half")
        await running.app.reading.wait()
        newest = await stack.enter_async_context(running.client())
        newest.send(GET % b"now")
        assert await newest.answer() == (200, b"/now")
        assert await silent.rest() == b""
        running.app.gate.set()
        assert await waiting.answer() == (200, b"/later")
