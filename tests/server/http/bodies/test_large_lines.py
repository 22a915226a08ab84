"""Large lines: what streams of them hold together, and what is left of them once they are embedded."""

import asyncio
import gc
import json
from collections.abc import Iterator

import pytest

from server.dialects.openai import Line, read_line
from server.http import line_streams
from server.http.body import Message
from server.requests.work import EmbedRequest
from tests.server.edge import Edge, call

pytestmark = pytest.mark.holds("Lines", "Every bound")

PATH = "/v1/embeddings"
NDJSON = {"content-type": "application/x-ndjson"}
MAX_BYTES = 200_000  # of a body; four times as many of all
LINE = b'"' + b"a " * 50_000 + b'"\n'
NUM_STREAMS = 3


def stream_of(num_lines: int) -> Iterator[bytes]:
    for _ in range(num_lines):
        yield LINE


async def test_streams_together_read_no_more_than_all_bodies_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0

    def counted(data: bytes, index: int) -> Line:
        nonlocal found
        found += 1
        return read_line(data, index)

    monkeypatch.setattr(line_streams, "read_line", counted)
    edge = Edge(max_bytes=MAX_BYTES)
    edge.tokenizers.gate = asyncio.Event()
    asked = [asyncio.ensure_future(call(edge.app, "POST", PATH, stream_of(8), NDJSON)) for _ in range(NUM_STREAMS)]
    num_ticks, seen = 0, (0, 0)
    while num_ticks < 2_000:  # in a row, in which nothing more was read
        await asyncio.sleep(0)
        newest = found, edge.app._bodies._open.num_bytes
        num_ticks, seen = num_ticks + 1 if newest == seen else 0, newest
    num_read, num_bytes = seen
    edge.tokenizers.gate.set()
    answers = [answer.body.splitlines() for answer in await asyncio.gather(*asked)]
    assert edge.app._bodies._open.num_bytes == 0
    rows = [sum("embedding" in json.loads(line) for line in answer) for answer in answers]

    assert num_read <= 4 * MAX_BYTES // len(LINE) + NUM_STREAMS * 2  # two lines: one read, one whose work has not begun
    assert 4 * MAX_BYTES <= num_bytes <= 4 * MAX_BYTES + NUM_STREAMS * 2 * 3 * len(LINE)  # two lines, thrice in memory
    assert rows == [8] * NUM_STREAMS  # they have waited, and none was refused


def test_nothing_is_left_of_texts_whose_answers_are_not_read() -> None:
    async def run() -> tuple[int, int]:
        edge = Edge(max_bytes=1 << 22)
        pieces: asyncio.Queue[Message] = asyncio.Queue()
        sent: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": [(b"content-type", line_streams.LINES)]}
        task = asyncio.create_task(edge.app(scope, pieces.get, sent.put))
        pieces.put_nowait({"type": "http.request", "body": LINE * line_streams.MAX_OPEN, "more_body": True})
        while len(edge.managers.submitted) < line_streams.MAX_OPEN:
            await edge.managers.arrivals.get()
        for _ in range(200):
            await asyncio.sleep(0)
        gc.collect()
        left = sum(issubclass(type(each), Line) and bool(each.input) for each in gc.get_objects())
        requests = sum(issubclass(type(each), EmbedRequest) for each in gc.get_objects())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return left, requests

    gc.freeze()  # what other tests have left is not looked at
    try:
        assert asyncio.run(run()) == (0, 0)
    finally:
        gc.unfreeze()
