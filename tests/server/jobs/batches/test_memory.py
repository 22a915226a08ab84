"""What a batch has in memory: few lines where they or their answers are large."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from server.features.jobs.batches import lines as batch_lines
from server.features.jobs.batches import run as batch_run
from server.features.jobs.http_client import HttpAnswer
from server.features.jobs.pace import SendQueue
from tests.server.jobs.batches.fake_batches import JSON, FakeServer, input_lines, joined, opened, running

KIB = 1024
SLOW = 60  # the line whose answer does not come


class Answers(FakeServer):
    """Of this size, at once but for one."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.waits = asyncio.Event()

    async def ask(self, queue: SendQueue, route: str, body: bytes, request_id: str, **more: Any) -> HttpAnswer:
        self.asked.append(request_id)
        if request_id.endswith(f"_{SLOW}"):
            self.waits.set()
            await asyncio.Event().wait()
        return HttpAnswer(200, JSON, b'"%s"' % bytes(self.size).replace(b"\0", b"x"))


async def num_asked(folder: Path, server: Answers, content: bytes) -> int:
    """How many lines were taken behind the one that waits, until no more are."""
    async with opened(folder, server) as place:
        await place.made(content)
        async with running(place):
            await server.waits.wait()
            num = 0
            while num < len(server.asked):
                num = len(server.asked)
                for _ in range(20):
                    await asyncio.to_thread(lambda: None)  # the run reads its lines in threads
    return num - SLOW


@pytest.mark.parametrize(
    ("answer", "line", "most"), [(100, 100, 65), (100 * KIB, 100, 11), (KIB * KIB, 100, 5), (100, 300 * KIB, 5)]
)
async def test_few_lines_are_taken_where_they_or_their_answers_are_large(
    answer: int, line: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "MAX_BYTES_IN_FLIGHT", KIB * KIB)
    monkeypatch.setattr(batch_lines, "_TAKEN_BYTES", 128 * KIB)
    content = joined(input_lines(200, body={"input": "x" * line}))
    assert await num_asked(tmp_path, Answers(answer), content) < most
