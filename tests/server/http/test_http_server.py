"""The HTTP server around any application: connections, clients that leave, and an end that loses nothing."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

import pytest

from server.http.protocol import Protocol
from server.requests.errors import HeadTooLarge
from tests.server.http.running import GET, Running, Test


def test_a_connection_is_kept_for_many_requests(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
        async with running.client() as client:
            for _ in range(3):
                client.send(GET % b"now")
                assert await client.answer() == (200, b"/now")

    run(test)


def test_requests_sent_ahead_are_answered_in_order(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(GET % b"slow", GET % b"now")
            await running.app.waiting.get()
            running.app.gate.set()
            assert [await client.answer(), await client.answer()] == [(200, b"/slow"), (200, b"/now")]

    run(test)


@pytest.mark.holds("Cancellation")
def test_a_client_that_leaves_ends_the_work_for_it(
    run: Callable[[Test], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(running: Running) -> None:
        for path in (b"wait", b"slow"):  # whether the handler lets itself be cancelled or has last words
            async with running.client() as client:
                client.send(GET % path)
                await running.app.waiting.get()
            await running.app.cancelled.get()
        async with running.client() as client:  # others go on
            client.send(GET % b"now")
            assert await client.answer() == (200, b"/now")

    with caplog.at_level(logging.INFO):
        run(test)
    assert caplog.records == []


@pytest.mark.holds("Cancellation")
def test_a_client_that_leaves_after_a_large_body_is_missed_too(run: Callable[[Test], None]) -> None:
    """Over so much the connection is not read for a while."""

    async def test(running: Running) -> None:
        body = b"x" * 300_000
        async with running.client() as client:
            client.send(b"POST /wait HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % len(body), body)
            await running.app.waiting.get()
        await asyncio.wait_for(running.app.cancelled.get(), 20)

    run(test)


@pytest.mark.holds("Cancellation")
def test_a_client_that_closes_its_sending_half_is_gone_too(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(GET % b"wait")
            await running.app.waiting.get()
            client.writer.write_eof()
            await running.app.cancelled.get()
            assert await client.rest() == b""

    run(test)


@pytest.mark.holds("Shutdown")
def test_stop_waits_for_what_is_open_and_closes_what_is_idle(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
        async with running.client() as idle, running.client() as busy, running.client() as silent:
            idle.send(GET % b"now")
            await idle.answer()
            busy.send(GET % b"slow")
            await running.app.waiting.get()

            stopping = asyncio.create_task(running.server.stop(10))
            assert [await idle.rest(), await silent.rest()] == [b"", b""]
            assert not stopping.done()
            running.app.gate.set()

            assert await busy.answer() == (200, b"/slow")
            assert await busy.rest() == b""
            await stopping

    run(test)


@pytest.mark.parametrize(("path", "rest"), [(b"slow", b"sorry"), (b"wait", b"")])
def test_stop_cancels_what_takes_too_long_and_lets_it_say_so(
    run: Callable[[Test], None], path: bytes, rest: bytes
) -> None:
    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(GET % path)
            await running.app.waiting.get()

            await running.server.stop(0)

            await running.app.cancelled.get()
            answered = await client.rest()
            assert answered.endswith(rest)
            assert answered.startswith(b"HTTP/1.1 503" if rest else b"")

    run(test)


@pytest.mark.holds("Shutdown")
def test_while_it_drains_every_answer_closes_its_connection(run: Callable[[Test], None]) -> None:
    """Of what was asked before, too, and of requests that were sent ahead the last one."""

    async def test(running: Running) -> None:
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

    run(test)


@pytest.mark.holds("A connection that was established is answered", "Shutdown")
def test_a_request_that_is_on_its_way_when_the_server_stops_is_answered(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
        async with running.client() as kept, running.client() as new:
            kept.send(GET % b"now")
            await kept.answer()
            new.send(GET % b"now")
            await new.answer()
            stopping = asyncio.create_task(running.server.stop(10))
            await asyncio.sleep(0)
            kept.send(GET % b"now")
            new.send((GET % b"now")[:10])
            await asyncio.sleep(0.01)
            new.send((GET % b"now")[10:])
            for client in (kept, new):
                assert b"connection: close" in await client.rest()
            await stopping

    run(test)


@pytest.mark.holds("Shutdown")
def test_after_stop_nobody_is_let_in(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
        await running.server.stop(10)
        with pytest.raises(ConnectionRefusedError):
            async with running.client():
                pass

    run(test)


def test_a_handler_that_fails_is_logged_and_its_client_is_not_left_waiting(
    run: Callable[[Test], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(GET % b"fail")
            assert await client.rest() == b""
        async with running.client() as client:
            client.send(GET % b"now")
            assert await client.answer() == (200, b"/now")

    run(test)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


UPGRADE = b"POST /echo HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("size", [5, 300_000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_to_upgrade_is_declined_and_the_body_is_read(
    run: Callable[[Test], None], size: int, is_chunked: bool
) -> None:
    """Java's client offers HTTP/2 with every request, one with a body too."""
    body = bytes(range(256)) * (size // 256) + b"hello"
    length = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(body)
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body

    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(UPGRADE, length, b"\r\n\r\n", sent)
            assert await client.answer() == (200, body)
            client.send(UPGRADE, length, b"\r\n\r\n")
            await client.writer.drain()
            client.send(sent)
            assert await client.answer() == (200, body)
            client.send(GET % b"now")
            assert await client.answer() == (200, b"/now")

    run(test)


def test_a_web_socket_is_a_usual_request_here_and_a_tunnel_is_none(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(b"GET /now HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            assert await client.answer() == (200, b"/now")
            client.send(b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 400")
        assert running.app.paths == ["/now"]

    run(test)


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
def test_a_body_of_unclear_length_is_refused_by_the_parser(run: Callable[[Test], None], head: bytes) -> None:
    """So that whoever reads content-length may trust it."""

    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(b"POST /slow HTTP/1.1\r\nhost: a\r\n" + head + b"\r\n\r\nhello")
            assert (await client.rest()).startswith(b"HTTP/1.1 400")

    run(test)


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
def test_a_request_names_its_host_once(run: Callable[[Test], None], head: bytes, status: bytes) -> None:
    """RFC 9112, section 3.2; HTTP/1.0 had no such header."""

    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(head)
            assert (await client.rest()).startswith(b"HTTP/1.1 " + status)

    run(test)


@pytest.mark.holds("Shutdown")
def test_stop_waits_until_a_large_answer_is_read(run: Callable[[Test], None]) -> None:
    """Uvicorn takes a request for finished once its answer is in the socket's buffer."""

    async def test(running: Running) -> None:
        async with running.client() as client:
            size = 20_000_000
            client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size, b"x" * size)
            await running.app.waiting.get()
            stopping = asyncio.create_task(running.server.stop(20))
            status, body = await client.answer()
            assert (status, len(body)) == (200, size)
            await stopping

    run(test)


@pytest.mark.holds("Clients that do not read their answers are disconnected", "Limits")
@pytest.mark.parametrize(("num_requests", "size"), [(1, 20_000_000), (400, 60_000)], ids=["one large answer", "many"])
def test_who_does_not_read_its_answers_is_cut_off(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch, num_requests: int, size: int
) -> None:
    """What waits in the connection's buffer is let go too."""
    monkeypatch.setattr(Protocol, "answer_seconds", 0.05)

    async def test(running: Running) -> None:
        async with running.client() as client:
            head = b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size
            client.send(*[head, b"x" * size] * num_requests)
            await running.app.waiting.get()
            await running.server._state.empty.wait()
        async with running.client() as client:
            client.send(GET % b"now")
            assert await client.answer() == (200, b"/now")

    run(test)


def test_who_reads_its_answers_is_left_alone(run: Callable[[Test], None]) -> None:
    size = 20_000_000

    async def test(running: Running) -> None:
        async with running.client() as client:
            for _ in range(2):
                client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size, b"x" * size)
                assert len((await client.answer())[1]) == size
                (connection,) = running.server._state.connections
                assert isinstance(connection, Protocol)
                assert connection._answer_timer is not None  # it was set, as not all of it fits into a buffer
                assert connection._answer_timer.cancelled()

    run(test)


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
def test_a_head_that_is_too_large_is_refused(run: Callable[[Test], None], head: bytes) -> None:
    async def test(running: Running) -> None:
        async with running.client() as client:
            client.send(GET % b"now")  # the limits are each request's own
            assert await client.answer() == (200, b"/now")
            client.send(head)
            with contextlib.suppress(ConnectionError):
                assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
        assert running.app.paths == ["/now"]
        assert [type(error) for error in running.refused] == [HeadTooLarge]

    run(test)


@pytest.mark.holds("Errors")
def test_what_is_refused_before_its_route_is_known_has_openais_shape(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
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

    run(test)


@pytest.mark.holds("Limits")
def test_a_head_within_the_limits_is_taken_in_any_pieces(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
        async with running.client() as client:
            request = (
                b"GET /now HTTP/1.1\r\nhost: a\r\n" + b"name: value\r\n" * 98 + b"long: " + b"x" * 29_000 + b"\r\n\r\n"
            )
            for start in range(0, len(request), 5_000):
                client.send(request[start : start + 5_000])
                await client.writer.drain()
                await asyncio.sleep(0)
            assert await client.answer() == (200, b"/now")

    run(test)


@pytest.mark.holds("Limits")
def test_a_head_that_does_not_come_is_given_up(run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Protocol, "head_seconds", 0.05)

    async def test(running: Running) -> None:
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

    run(test)


@pytest.mark.holds("Limits")
def test_a_connection_that_says_nothing_is_closed(run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Protocol, "head_seconds", 0.05)  # less than a connection may be idle between requests

    async def test(running: Running) -> None:
        async with running.client() as client:
            assert await client.rest() == b""
        assert running.refused == []

    run(test)


@pytest.mark.holds("Limits")
def test_where_there_are_too_many_connections_the_oldest_idle_one_gives_way(run: Callable[[Test], None]) -> None:
    async def test(running: Running) -> None:
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

    run(test)
