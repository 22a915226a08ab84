"""Lines of two bytes, and blank ones: what is read of them ahead, in which groups they go, and who runs meanwhile."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from server.dialects.openai import Line, read_line
from server.http import line_streams
from server.http.body import BodyReader, Message
from server.requests.errors import PayloadTooLarge
from server.requests.time_slices import SharedSlice
from tests.server.edge import Edge, call
from tests.server.loop_share import turns_during

pytestmark = pytest.mark.holds("Lines")

PATH = "/v1/embeddings"
NDJSON = {"content-type": "application/x-ndjson"}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that were read."""
    found = list[bytes]()

    def counted(data: bytes, index: int) -> Line:
        found.append(data)
        return read_line(data, index)

    monkeypatch.setattr(line_streams, "read_line", counted)
    return found


def reader_of(*pieces: bytes, max_lines: int = 4) -> line_streams.LineReader:
    waiting = list(pieces)

    async def receive() -> Message:
        piece = waiting.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    bodies = BodyReader(max_bytes=1 << 22, max_total_bytes=1 << 24)
    return line_streams.LineReader(
        receive, bodies, max_lines=max_lines, is_stopping=lambda: False, time_slice=SharedSlice()
    )


async def groups_of(reader: line_streams.LineReader) -> list[Sequence[Line]]:
    found = list[Sequence[Line]]()
    while (group := await reader.group()) is not None:
        found.append(group)
    return found


async def test_no_more_lines_are_read_than_a_group_needs(read: list[bytes]) -> None:
    reader = reader_of(b"1\n" * 10_000)

    assert len(await reader.group() or ()) == 4
    assert len(read) == 4
    await reader.group()
    assert len(read) == 8


async def test_of_a_client_that_reads_no_answer_few_lines_are_read(read: list[bytes]) -> None:
    pieces: asyncio.Queue[Message] = asyncio.Queue()
    sent: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [(b"content-type", line_streams.LINES)]}
    task = asyncio.create_task(Edge().app(scope, pieces.get, sent.put))
    pieces.put_nowait({"type": "http.request", "body": b"1\n" * 50_000, "more_body": True})
    for _ in range(5_000):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    most = 4 * (line_streams.MAX_OPEN + 2)  # an edge of tests takes four items
    assert 4 * line_streams.MAX_OPEN <= len(read) <= most


async def test_wrong_lines_go_with_their_neighbours() -> None:
    body = b'1\n"a"\n2\n3\n"b"\n{"input":"c","dimensions":2}\n4\n{"input":"d","dimensions":2}\n"e"\n'
    groups = await groups_of(reader_of(body, max_lines=9))

    assert [[line.index for line in group] for group in groups] == [[0, 1, 2, 3, 4], [5, 6, 7], [8]]


async def test_wrong_lines_are_reported_as_one_request() -> None:
    edge = Edge()
    called = await call(edge.app, "POST", PATH, b"".join(b"%d\n" % number for number in range(8)), NDJSON)
    answers, counts = [json.loads(line) for line in called.body.splitlines()], edge.metrics.drain()["counts"]

    assert [answer["index"] for answer in answers] == list(range(8))
    assert {answer["error"]["message"] for answer in answers} == {"a line must be a text or an object with `input`"}
    assert ["embedline_requests_total", PATH, "none", "400", 2] in counts  # of four lines each


def test_an_error_keeps_nothing_alive() -> None:
    error = read_line(b'"\\x"', 0).error

    assert error is not None
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


@pytest.mark.parametrize("blank", [b"\n", b" \t\r\n", b" ", b"\n\n\n \n"])
def test_blank_lines_take_a_look_at_each_piece_and_let_others_run(
    blank: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, next_whole = 0, line_streams.LineReader._next_whole

    def counted(self: line_streams.LineReader) -> bytes:
        nonlocal looks
        looks += 1
        return next_whole(self)

    monkeypatch.setattr(line_streams.LineReader, "_next_whole", counted)
    reader = reader_of(*[blank * 20_000] * 50)

    assert turns_during(reader.group()) >= 50
    assert looks == 51


def test_others_run_between_lines() -> None:
    assert turns_during(groups_of(reader_of(b"1\n" * 1_000))) >= 1_000


@pytest.mark.parametrize("cut", [1, 2, 3, 1 << 20])
async def test_a_line_that_is_too_long_comes_after_those_before_it(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_streams, "MAX_LINE_BYTES", 8)
    body = b'"a"\n \n"b"\n"123456789"\n"c"\n'
    reader = reader_of(*(body[start : start + cut] for start in range(0, len(body), cut)))

    found = list[bytes]()

    async def read_all() -> None:
        while (group := await reader.group()) is not None:
            found.extend(line.input for line in group)

    with pytest.raises(PayloadTooLarge):
        await read_all()
    assert found == [b'"a"', b'"b"']
