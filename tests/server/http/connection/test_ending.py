"""How a server ends: open requests are answered, idle connections closed, and nobody new is let in."""

import asyncio

import pytest

from server.http.body import STOPPING
from tests.server.http.bare import Bare
from tests.server.http.running import GET, Running
from tests.server_e2e.running import PATIENCE

pytestmark = pytest.mark.both_loops


@pytest.mark.holds("Shutdown")
async def test_stop_waits_for_what_is_open_and_closes_what_is_idle(running: Running) -> None:
    async with running.client() as idle, running.client() as busy, running.client() as silent:
        idle.send(GET % b"now")
        await idle.answer()
        busy.send(GET % b"slow")
        await running.app.waiting.get()

        stopping = asyncio.create_task(running.server.stop(PATIENCE))
        assert [await idle.rest(), await silent.rest()] == [b"", b""]
        assert not stopping.done()
        running.app.gate.set()

        assert await busy.answer() == (200, b"/slow")
        assert await busy.rest() == b""
        await stopping


@pytest.mark.parametrize(("path", "rest"), [(b"slow", b"sorry"), (b"wait", b"")])
async def test_stop_cancels_what_takes_too_long_and_lets_it_say_so(running: Running, path: bytes, rest: bytes) -> None:
    async with running.client() as client:
        client.send(GET % path)
        await running.app.waiting.get()

        await running.server.stop(0)

        assert await running.app.cancelled.get() == (STOPPING,)
        answered = await client.rest()
        assert answered.endswith(rest)
        assert answered.startswith(b"HTTP/1.1 503" if rest else b"")


@pytest.mark.holds("Shutdown")
async def test_while_it_drains_every_answer_closes_its_connection(running: Running) -> None:
    """Of what was asked before, too, and of requests that were sent ahead the last one."""
    async with running.client() as asked, running.client() as idle, running.client() as ahead:
        idle.send(GET % b"now")
        await idle.answer()
        asked.send(GET % b"slow")
        await running.app.waiting.get()
        running.server.drain()
        ahead.send(GET % b"now" * 3)
        answers = await ahead.rest()
        assert (answers.count(b"HTTP/1.1 200"), answers.count(b"connection: close")) == (3, 1)
        running.app.gate.set()
        for client in (asked, idle):
            if client is idle:
                client.send(GET % b"now")
            assert b"connection: close" in await client.rest()
        async with running.client() as new:
            new.send(GET % b"now")
            assert b"connection: close" in await new.rest()


@pytest.mark.holds("A connection that was established is answered", "Shutdown")
async def test_a_request_that_is_on_its_way_when_the_server_stops_is_answered(running: Running) -> None:
    async with running.client() as kept, running.client() as new:
        kept.send(GET % b"now")
        await kept.answer()
        new.send(GET % b"now")
        await new.answer()
        stopping = asyncio.create_task(running.server.stop(PATIENCE))
        await asyncio.sleep(0)
        kept.send(GET % b"now")
        new.send((GET % b"now")[:10])
        await asyncio.sleep(0.01)
        new.send((GET % b"now")[10:])
        for client in (kept, new):
            assert b"connection: close" in await client.rest()
        await stopping


@pytest.mark.holds("Shutdown")
async def test_after_stop_nobody_is_let_in(running: Running) -> None:
    await running.server.stop(10)
    with pytest.raises(ConnectionRefusedError):
        async with running.client():
            pass


@pytest.mark.holds("Shutdown")
async def test_stop_waits_until_a_large_answer_is_read(running: Running) -> None:
    """Uvicorn takes a request for finished once its answer is in the socket's buffer."""
    async with running.client() as client:
        size = 20_000_000
        client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size, b"x" * size)
        await running.app.waiting.get()
        stopping = asyncio.create_task(running.server.stop(PATIENCE))
        status, body = await client.answer()
        assert (status, len(body)) == (200, size)
        await stopping


@pytest.mark.holds("Shutdown")
@pytest.mark.parametrize("rest", [b"", b"1\r\nx\r\n" * 10_000], ids=["nothing", "small chunks"])
async def test_a_stop_does_not_wait_for_the_rest_of_a_refused_body(server: Bare, rest: bytes) -> None:
    client = server.connect()
    head = b"POST /now HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    await client.send(head + rest)
    assert client.statuses() == [200]
    assert not client.transport.is_closing()
    client.protocol.close_if_idle()
    assert client.transport.is_closing()
