"""One request and its answer on a connection: what is written, and which messages make no answer."""

import asyncio
from typing import Any

import pytest

from server.http.body import WHOLE_BODY, Message, Receive, Scope, Send
from server.http.h1 import connection as connections
from server.http.h1.connection import Connection, Exchange
from tests.server.http.bare import Transport

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]}
BODY: Message = {"type": "http.response.body", "body": b"hello"}


def exchange(method: str = "POST", *, keep_alive: bool = True, expects_continue: bool = False) -> Exchange:
    connection = Connection(idle_seconds=1)
    connection.connection_made(Transport(connection))
    scope: dict[str, Any] = {"method": method}
    return Exchange(connection, scope, keep_alive=keep_alive, expects_continue=expects_continue)


@pytest.fixture(autouse=True)
def _date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_date_line", lambda second: b"date: Mon, 01 Jan 2024 00:00:00 GMT")


def written(*messages: Message, method: str = "POST", keep_alive: bool = True) -> bytes:
    async def send() -> bytes:
        one = exchange(method, keep_alive=keep_alive)
        for message in messages:
            await one.send(message)
        transport = one._connection.transport
        assert isinstance(transport, Transport)
        assert one.response_complete == (not messages[-1].get("more_body", False))
        return bytes(transport.written)

    return asyncio.run(send())


HEAD = b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\n"


def test_an_answer_with_a_length_is_written_as_it_is() -> None:
    more = {**BODY, "body": b"he", "more_body": True}
    rest = {**BODY, "body": memoryview(b"llo")}

    assert written(START, BODY) == written(START, more, rest) == HEAD + b"content-length: 5\r\n\r\nhello"
    assert written(START, BODY, method="HEAD") == HEAD + b"content-length: 5\r\n\r\n"
    assert written(START, BODY, keep_alive=False) == HEAD + b"content-length: 5\r\nconnection: close\r\n\r\nhello"


def test_an_answer_without_a_length_is_chunked() -> None:
    start = {**START, "headers": []}
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"

    assert written(start, {**BODY, "more_body": True}, {**BODY, "body": b""}) == head + b"5\r\nhello\r\n0\r\n\r\n"
    assert written({**start, "status": 204}, {**BODY, "body": b""}).endswith(b"GMT\r\n\r\n")


@pytest.mark.parametrize(
    "messages",
    [
        [BODY],
        [START, START],
        [START, BODY, BODY],
        [START, {**BODY, "body": b"hell"}],
        [START, {**BODY, "body": b"hello!"}],
        [{**START, "headers": [(b"x-name", b"a\r\nset-cookie: b")]}],
        [{**START, "headers": [(b"x-name", b"a\nb")]}],
    ],
    ids=["body-first", "two-heads", "two-bodies", "too-short", "too-long", "line-break", "line-feed"],
)
def test_messages_that_make_no_answer_are_refused(messages: list[Message]) -> None:
    async def send() -> None:
        one = exchange()
        for message in messages:
            await one.send(message)

    with pytest.raises(RuntimeError):
        asyncio.run(send())


async def test_a_small_body_that_is_whole_is_in_the_scope() -> None:
    found = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope.get(WHOLE_BODY))

    for one in (exchange(), begun := exchange(), exchange(expects_continue=True)):
        one.take(b"abc")
        one.more_body = one is begun
        await one.run(app)
    assert found == [b"abc", None, None]
