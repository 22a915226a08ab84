"""The jobs process's HTTP client against a server that says exactly these bytes; and what it makes of answers: attempts
that count, and those that don't.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from server.features.jobs import http_client
from server.features.jobs.http_client import AnswerTooLarge, ConnectionLost, HttpAnswer, HttpConnection, SelfClient
from server.features.jobs.pace import Pace, Postponed, SendQueue
from server.features.jobs.types import RetryPolicy
from tests.server.jobs.test_runner import LOST, Answers, serving
from tests.server.jobs.test_runner import OK as OK_ANSWER
from tests.server.jobs.test_runner import Server as Answering
from tests.server_e2e.running import PATIENCE

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


async def asked(folder: Path, server: Server, times: int) -> list[HttpAnswer]:
    path = str(folder / "s")
    async with serving(path, server.accepted):
        connection = HttpConnection(path)
        try:
            return [await connection.post("/a", [("b", "c")], b"body", max_bytes=10) for _ in range(times)]
        finally:
            connection.close()


async def test_requests_share_a_connection(tmp_path: Path) -> None:
    server = Server([OK, OK])
    first, second = await asked(tmp_path, server, 2)

    assert first == second == HttpAnswer(200, {"content-length": "2", "x-some": "a"}, b"hi")
    assert server.heads[0].startswith(b"POST /a HTTP/1.1\r\nhost: localhost\r\n")
    assert b"\r\nb: c\r\n" in server.heads[0]
    assert b"\r\ncontent-length: 4\r\n" in server.heads[0]


async def test_a_connection_that_was_closed_is_made_again(tmp_path: Path) -> None:
    assert [one.status for one in await asked(tmp_path, Server([CLOSING], [OK], [OK]), 3)] == [503, 200, 200]


@pytest.mark.parametrize("answer", [b"", OK[:-1], b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 100_000])
async def test_an_answer_that_is_not_whole(answer: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost):
        await asked(tmp_path, Server([answer], [answer]), 1)


async def answer_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers, **changes: Any
) -> tuple[HttpAnswer, Answering]:
    """To a request, where the server answers so, and whom it asked."""
    monkeypatch.setattr(http_client, "_LOST_SECONDS", 0.0)
    queue = changes.pop("queue", None) or SendQueue("team")
    how = {"headers": [("accept", "a/b")], "retry": RetryPolicy(3, 0, 0), "max_bytes": 100, **changes}
    server, path = Answering(answers), str(folder / "http.sock")
    async with serving(path, server.accepted), asyncio.timeout(PATIENCE):
        client = SelfClient(path, "secret", Pace(4))
        try:
            return await client.ask(queue, "/v1/embeddings", b"{}", "line 1", **how), server
        finally:
            client.close()


@pytest.mark.parametrize(
    "answers",
    [
        *([(status, b"")] * 2 for status in (424, 500, 502, 504)),
        [(504, b""), LOST, (504, b"")],
        [(429, b"")] * 5,
        [(503, b"")] * 5,
        [(500, b""), *[(429, b"")] * 5, (500, b"")],
        [LOST] * 9,
    ],
    ids=range(9),
)
async def test_what_fails_for_now_is_asked_again(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, server = await answer_of(tmp_path, monkeypatch, [*answers, OK_ANSWER])
    assert (answer.status, len(server.heads)) == (200, len(answers) + 1)


@pytest.mark.parametrize(
    ("status", "times"), [(500, 4), (502, 4), (400, 1), (401, 1), (404, 1), (413, 1), (422, 1), (505, 1)]
)
async def test_an_answer_that_stays_counts(
    status: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, server = await answer_of(tmp_path, monkeypatch, [(status, b"why")], retry=RetryPolicy(4, 0, 0))
    assert (answer.status, answer.body, len(server.heads)) == (status, b"why", times)


async def test_a_request_that_ends_its_server_each_time_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectionLost):
        await answer_of(tmp_path, monkeypatch, [LOST] * 10)


@pytest.mark.parametrize(("answers", "is_postponed"), [([(429, b"")], True), ([(500, b""), (429, b"")], False)])
async def test_a_request_that_may_not_wait_for_room(
    answers: Answers, is_postponed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was computed in vain it goes on."""
    with pytest.raises(Postponed) if is_postponed else contextlib.nullcontext():
        answer, _ = await answer_of(tmp_path, monkeypatch, [*answers, OK_ANSWER], may_wait=lambda: False)
        assert answer.status == 200


async def test_what_is_in_a_closed_queue_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = SendQueue("team")
    queue.close()
    with pytest.raises(Postponed):
        await answer_of(tmp_path, monkeypatch, [OK_ANSWER], queue=queue)


async def test_an_answer_over_the_bound_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnswerTooLarge):
        await answer_of(tmp_path, monkeypatch, [OK_ANSWER], max_bytes=3)


@pytest.mark.parametrize(
    ("status", "after", "is_paused"),
    [(200, "9", False), (500, "9", False), (503, "0", False), (429, "9", True), (503, "x", True)],
)
async def test_the_servers_words_are_heeded(status: int, after: str, is_paused: bool, tmp_path: Path) -> None:
    said = f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\nretry-after: {after}\r\n\r\n".encode()
    path, pace = str(tmp_path / "s"), Pace(4)
    client, queue = SelfClient(path, "secret", pace), SendQueue("")
    how: dict[str, Any] = {"headers": [], "retry": RetryPolicy(1, 0, 0), "max_bytes": 9}
    async with serving(path, Server([said]).accepted):
        with contextlib.suppress(Postponed):
            await client.ask(queue, "/a", b"body", "1", may_wait=lambda: False, **how)
        client.close()
    assert pace.is_paused("") == is_paused
