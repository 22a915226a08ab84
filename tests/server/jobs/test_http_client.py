"""The jobs process's HTTP client against a server that says exactly these bytes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from server.features.jobs.http_client import AnswerTooLarge, ConnectionLost, HttpAnswer, HttpConnection

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Some: a\r\n\r\nhi"
CLOSING = b"HTTP/1.1 503 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Server:
    """Gives each connection its list of answers, then closes it."""

    def __init__(self, *connections: Sequence[bytes]) -> None:
        self._connections = list(connections)
        self.heads: list[bytes] = []

    async def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in self._connections.pop(0):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            await reader.readexactly(4)
            writer.write(answer)
        writer.close()


def asked(folder: Path, server: Server, times: int) -> list[HttpAnswer]:
    async def run() -> list[HttpAnswer]:
        path = str(folder / "s")
        listening = await asyncio.start_unix_server(server.accepted, path)
        connection = HttpConnection(path)
        try:
            return [await connection.post("/a", [("b", "c")], b"body", max_bytes=10) for _ in range(times)]
        finally:
            connection.close()
            listening.close()

    return asyncio.run(run())


def test_requests_share_a_connection(tmp_path: Path) -> None:
    server = Server([OK, OK])
    first, second = asked(tmp_path, server, 2)

    assert first == second == HttpAnswer(200, {"content-length": "2", "x-some": "a"}, b"hi")
    assert server.heads[0].startswith(b"POST /a HTTP/1.1\r\nhost: localhost\r\n")
    assert b"\r\nb: c\r\n" in server.heads[0]
    assert b"\r\ncontent-length: 4\r\n" in server.heads[0]


def test_a_connection_that_was_closed_is_made_again(tmp_path: Path) -> None:
    assert [one.status for one in asked(tmp_path, Server([CLOSING], [OK], [OK]), 3)] == [503, 200, 200]


@pytest.mark.parametrize("answer", [b"", OK[:-1], b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 100_000])
def test_an_answer_that_is_not_whole(answer: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost):
        asked(tmp_path, Server([answer], [answer]), 1)


def test_an_answer_that_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(AnswerTooLarge):
        asked(tmp_path, Server([b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n"]), 1)
