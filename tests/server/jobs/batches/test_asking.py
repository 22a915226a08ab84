"""What becomes of a batch's line by what the server answers: attempts that count, and those that don't."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from server.features.jobs.batches import answers as asking_module
from server.features.jobs.batches.answers import Asking
from server.features.jobs.http_client import AnswerTooLarge, ConnectionLost, HttpAnswer
from server.features.jobs.pace import Lane, Pace
from tests.server.jobs.test_runner import LOST, OK, Server
from tests.server_e2e.running import PATIENCE


def answer_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answers: Sequence[tuple[int, bytes]]
) -> tuple[HttpAnswer, Server]:
    """To a line, where the server answers so, and whom it asked."""
    monkeypatch.setattr(asking_module, "_FIRST_PAUSE", 0.0)

    async def main() -> tuple[HttpAnswer, Server]:
        server, path = Server(answers), str(folder / "http.sock")
        listening = await asyncio.start_unix_server(server.accepted, path)
        asking = Asking(path, "secret", Pace(4))
        try:
            async with asyncio.timeout(PATIENCE):
                return await asking.ask(Lane("team"), "/v1/embeddings", b"{}", "line 1", accept="a/b"), server
        finally:
            asking.close()
            listening.close()

    return asyncio.run(main())


def test_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, server = answer_of(tmp_path, monkeypatch, [OK])
    assert (answer.status, answer.body) == OK
    (head,) = server.heads
    assert head.startswith("POST /v1/embeddings ")
    for line in ("accept: a/b", "x-embedline-class: bulk", "x-embedline-owner: team", "x-request-id: line 1"):
        assert f"\r\n{line}\r\n" in head


@pytest.mark.parametrize(
    "answers", [[(500, b"")] * 2, [(504, b""), LOST], [(429, b"")] * 5, [(503, b"")] * 5, [LOST] * 9]
)
def test_what_fails_for_now_is_asked_again(
    answers: list[tuple[int, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, server = answer_of(tmp_path, monkeypatch, [*answers, OK])
    assert (answer.status, len(server.heads)) == (200, len(answers) + 1)


@pytest.mark.parametrize(("status", "times"), [(500, 3), (502, 3), (400, 1), (404, 1)])
def test_an_answer_that_stays_is_the_lines(
    status: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, server = answer_of(tmp_path, monkeypatch, [(status, b"why")])
    assert (answer.status, answer.body, len(server.heads)) == (status, b"why", times)


def test_a_line_that_ends_its_server_each_time_has_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionLost):
        answer_of(tmp_path, monkeypatch, [LOST])


def test_an_answer_that_is_too_large_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_module, "MAX_ANSWER_BYTES", 3)
    with pytest.raises(AnswerTooLarge):
        answer_of(tmp_path, monkeypatch, [OK])
