"""Bodies of lines (NDJSON): each line has its answer, in order, while more of them comes."""

import asyncio
import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from server.dialects.lines import Line, read_line
from server.http import line_streams
from server.http.body import Message, Receive, RequestBodies
from server.http.request import LINES
from server.requests.errors import BodyTooSlow, InvalidRequest, Overloaded, PayloadTooLarge
from server.requests.limits import SharedSlice
from server.requests.work import EmbedRequest
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Called, Edge, call, scope_of
from tests.server.loop_share import turns_during
from wire.vocabulary import RequestClass

PATH = "/v1/embeddings"
pytestmark = pytest.mark.holds("Lines")

NDJSON = {"content-type": "application/x-ndjson; charset=utf-8"}


def ask(
    body: bytes | Iterable[bytes], edge: Callable[[], Edge] = Edge, headers: Mapping[str, str] | None = None
) -> tuple[Called, Edge]:
    async def run() -> tuple[Called, Edge]:
        made = edge()
        return await call(made.app, "POST", PATH, body, {**NDJSON, **(headers or {})}), made

    return asyncio.run(run())


def values(called: Called) -> list[Any]:
    return [json.loads(line) for line in called.body.splitlines()]


def test_a_line_for_each_line_in_order_however_the_body_is_cut() -> None:
    body = (
        b'"one"\n\n{"input": "three", "id": "x", "dimensions": 2}\r\n[1]\n{"input":[5,6,7,8],"id":7}\n"'
        + b"y" * 9
        + b'"'
    )
    whole, edge = ask(body)
    in_bytes, _ = ask(bytes([each]) for each in body)

    assert whole.status == 200
    assert whole.headers["content-type"] == "application/x-ndjson"
    found = values(whole)
    assert found[0] == {"index": 0, "embedding": [3.0] * 8}
    assert found[1] == {"index": 1, "id": "x", "embedding": [5.0] * 2}
    assert found[2]["error"]["message"] == "a line must be a text or an object with `input`"
    assert found[3] == {"index": 3, "id": 7, "embedding": [4.0] * 8}
    assert found[4] == {"index": 4, "embedding": [9.0] * 8}
    assert values(in_bytes) == found
    assert {each.request_class for each in edge.managers.submitted} == {RequestClass.BULK}
    assert edge.admission.requests.num_open == 0


def test_the_work_of_lines_is_counted_for_their_key() -> None:
    keys = [ApiKey("one", digest(b"other")), ApiKey("two", digest(b"secret"))]
    called, edge = ask(b'"one"\n[2,3]\n', lambda: Edge(keys=keys), {"authorization": "Bearer secret"})
    assert called.status == 200
    assert {submission.key for submission in edge.managers.submitted} == {1}


@pytest.mark.parametrize(
    ("line", "param", "message"),
    [
        (b'"', "line", "line is not valid JSON in UTF-8 (at byte 1)"),
        (b'"a","b"', "line", "line is not valid JSON in UTF-8 (at byte 4)"),
        (b'{"input":"a"} 5', "line", "line is not valid JSON in UTF-8 (at byte 15)"),
        (b'""', "input", "input must not be an empty string"),
        (b"[1]", "line", "a line must be a text or an object with `input`"),
        (b'{"id":"x"}', "input", "input must be a text or a list of token ids"),
        (b'{"input":["a","b"]}', "input", "a line must have one text or one list of token ids"),
        (b'{"input":["a"]}', "input", "a line must have one text or one list of token ids"),
        (b'{"input":"a","id":[1]}', "id", "id must be a text or a number"),
        (b'{"input":"a","id":true}', "id", "id must be a text or a number"),
        (b'{"input":"a","dimensions":99}', "dimensions", "dimensions must be from 1 to 8 for this model"),
        (
            b'{"input":"a","encoding_format":"bytes"}',
            "encoding_format",
            "encoding_format can't be bytes in lines; base64 can",
        ),
        (b'{"input":"a","late_chunking":true}', "late_chunking", None),
        (b'{"input":"a","on_error":"null"}', "on_error", "on_error can't be given in a line: each fails alone"),
        (b'{"input":"a","return_multivector":true}', "return_multivector", None),
        (b"\xff", "line", None),
    ],
)
def test_a_wrong_line_fails_alone(line: bytes, param: str, message: str | None) -> None:
    """Also beside lines with the same options."""
    called, _ = ask(b"\n".join([b'"one"', line, line, b'"three"']))

    first, *wrong, last = values(called)
    assert (first["embedding"][0], last["embedding"][0], last["index"]) == (3.0, 5.0, 3)
    for found in wrong:
        assert found["error"]["param"] == param
        assert message in (None, found["error"]["message"])


def test_an_id_is_any_text_or_number_and_stays_with_an_error() -> None:
    ids = [b'"a"', b"1.5", b"1e3", b"-7", b"9" * 30]
    called, _ = ask(b"\n".join(b'{"input":"a","id":%b}' % each for each in (*ids, b"null")))
    *with_ids, without = called.body.splitlines()
    for line, own_id in zip(with_ids, ids, strict=True):
        assert b',"id":%b,"embedding"' % own_id in line
    assert b'{"index":5,"embedding"' in without

    wrong, _ = ask(b'{"id":"a","input":5}\n{"id":"b","input":"a","on_error":"null"}\n{"id":"d"}\n{"id":1,"input":""}')
    assert [(each["id"], "error" in each) for each in values(wrong)] == [(each, True) for each in ("a", "b", "d", 1)]


@pytest.mark.holds("Errors of single items")
def test_a_line_that_no_decoder_takes_keeps_its_id() -> None:
    lines_of_each = [
        rb'{"id":"a","input":"\ud83d"}',
        rb'{"input":"\ud83d","id":7}',
        b'{"id":"c","input":"a","dimensions":NaN}',
        b'{"id":"d","input":%b}' % (b"[" * 2000 + b"]" * 2000),
        rb'{"id":"e","input":"a',
        b'{"x":{"id":1},"id":"f","input":"\xff\x01"}',
        rb'{"id":"\ud83d","input":"a"}',
        b'{"id":[1],"x":NaN}',
        b'{"x":[%b],"id":1,"y":NaN}' % (b"1," * 5000 + b"1"),
        b'{"id":"j","input":"j"}',
    ]
    called, _ = ask(b"\n".join(lines_of_each), lambda: Edge(max_bytes=1 << 20))

    found = values(called)
    assert [each["index"] for each in found] == list(range(10))
    assert [each.get("id") for each in found] == ["a", 7, "c", "d", "e", "f", None, None, None, "j"]
    assert ["error" in each for each in found] == [True] * 9 + [False]


@pytest.mark.parametrize("cut", [1, 2, 3, 100])
def test_a_byte_order_mark_may_stand_before_the_first_line(cut: int) -> None:
    for before in (b"", b"\n", b" \r\n"):
        body = b"\xef\xbb\xbf" + before + b'"one"\n"three"'
        called, _ = ask([body[start : start + cut] for start in range(0, len(body), cut)])
        assert [each["embedding"][0] for each in values(called)] == [3.0, 5.0]

    called, _ = ask(b'"one"\n\xef\xbb\xbf"three"')
    assert ["error" in each for each in values(called)] == [False, True]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_lines_in_another_encoding_get_a_sentence(encoding: str) -> None:
    called, _ = ask('"one"\n"three"\n'.encode(encoding))

    assert called.status == 400
    assert called.error()["message"] == "the body is not valid JSON in UTF-8; it looks like UTF-16 or UTF-32"


def test_lines_that_ask_for_the_same_are_computed_together() -> None:
    body = b'"a"\n"bb"\n{"input":"ccc","dimensions":2}\n{"input":"d","dimensions":2}\n"e"\n""\n"ff"'
    called, edge = ask(body)

    assert [each.seqlens for each in edge.managers.submitted] == [[1, 2], [3, 1], [1, 2]]
    assert [each.get("embedding", [0])[0] for each in values(called)] == [1, 2, 3, 1, 1, 0, 2]


def test_forms_of_rows_and_what_was_cut_are_told_in_each_line() -> None:
    body = b'{"input":"a","encoding_format":"base64"}\n{"input":"a","output_dtype":"int8"}\n"%b"' % (b"x" * 17)
    called, _ = ask(body, headers={"accept": "application/octet-stream"})

    base64, scaled, cut = values(called)
    assert len(base64["embedding"]) == 44
    assert (scaled["embedding"], scaled["scale"]) == ([127] * 8, "row")
    assert cut["truncated"] is True


def test_what_fails_before_the_answer_begins_has_its_status() -> None:
    assert ask(b"\n \r\n")[0].error()["message"] == "the body has no lines"
    assert ask(b'"a"', headers={"content-encoding": "gzip"})[0].status == 415
    assert ask(b'"a"', headers={"content-type": "application/x-ndjson;charset=utf-16"})[0].status == 415
    assert ask(b'"a"', headers={"content-type": 'application/x-ndjson; Charset="UTF-8"'})[0].status == 200
    with pytest.raises(InvalidRequest, match=r"need HTTP/1\.1"):
        line_streams.check_head({b"content-type": LINES}, "1.0")
    assert ask(b'"a"', lambda: Edge(is_loaded=False))[0].status == 503
    assert ask(b'"a"', lambda: Edge(keys=[ApiKey("team", digest(b"sesame"))]))[0].status == 401
    assert ask(b'"%b"' % (b"x" * line_streams.MAX_LINE_BYTES))[0].status == 413


async def test_too_much_work_makes_the_client_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Edge()
    admit, refused = edge.admission.admit, list[Any]()

    def busy_at_first(asked: Any) -> Any:
        if len(refused) < 3:
            refused.append(asked)
            raise Overloaded("too much", retry_after=0.001)
        return admit(asked)

    monkeypatch.setattr(edge.admission, "admit", busy_at_first)
    assert [each["embedding"][0] for each in values(await call(edge.app, "POST", PATH, b'"one"\n"three"', NDJSON))] == [
        3.0,
        5.0,
    ]


async def test_a_server_that_stays_too_busy_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_streams, "_MAX_WAIT_SECONDS", 0.01)

    def busy(asked: Any) -> Any:
        raise Overloaded("too much", retry_after=0.001)

    edge = Edge()
    monkeypatch.setattr(edge.admission, "admit", busy)
    assert (await call(edge.app, "POST", PATH, b'"one"\n"three"', NDJSON)).status == 429


class Client:
    """Sends pieces of a body when it likes, and reads answers when it likes."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.pieces: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self.task = asyncio.ensure_future(edge.app(scope_of("POST", PATH, NDJSON), self.pieces.get, self.sent.put))

    def send(self, body: bytes, *, more: bool = True) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def line(self) -> Any:
        body = (await self.sent.get())["body"]
        return json.loads(body) if body else None


@pytest.fixture
async def client() -> Client:
    return Client(Edge(max_bytes=1 << 20))


async def test_answers_leave_while_more_lines_come_and_the_end_says_why(client: Client) -> None:
    client.send(b'"one"\n"thr')
    assert (await client.sent.get())["status"] == 200
    assert (await client.line())["embedding"][0] == 3.0
    client.send(b'ee"\n')
    assert (await client.line())["embedding"][0] == 5.0
    for _ in range(100):
        await asyncio.sleep(0)  # until it waits for more
    client.edge.state.draining = True
    client.send(b'"last"\n')
    assert (await client.line())["embedding"][0] == 4.0
    assert (await client.line())["error"]["code"] == "not_ready"
    assert await client.line() is None
    await client.task
    counts: list[list[object]] = client.edge.metrics.drain()["counts"]
    assert ["embedline_requests_total", PATH, "none", "503", 1] in counts


async def test_no_more_lines_are_read_than_may_be_open(client: Client) -> None:
    for _ in range(10 * line_streams.MAX_OPEN):
        client.send(b'"x"\n')
    await client.sent.get()  # the head; nothing after it is read
    while client.edge.admission.requests.num_open and len(client.edge.managers.submitted) < line_streams.MAX_OPEN:
        await client.edge.managers.arrivals.get()
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(client.edge.managers.submitted) <= line_streams.MAX_OPEN + 2
    client.task.cancel()
    await asyncio.gather(client.task, return_exceptions=True)
    assert client.edge.admission.requests.num_open == 0
    assert not client.edge.page.admitted_tokens.any()


async def test_a_body_that_stops_ends_after_the_answers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.body._PIECE_SECONDS", 0.01)

    client.send(b'"one"\n')
    await client.sent.get()
    assert (await client.line())["embedding"][0] == 3.0
    assert (await client.line())["error"]["code"] == "body_too_slow"
    assert await client.line() is None


async def test_a_client_that_waits_for_an_answer_is_not_slow(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.edge.managers.gate = gate = asyncio.Event()
    calls = list[Receive]()

    async def next_piece(receive: Receive) -> Message:
        calls.append(receive)
        if len(calls) == 2:  # as after 30 s in which nothing came
            gate.set()
            raise BodyTooSlow("nothing came")
        return await receive()

    monkeypatch.setattr(line_streams, "next_piece", next_piece)
    client.send(b'"one"\n')
    assert (await client.sent.get())["status"] == 200
    assert (await client.line())["embedding"][0] == 3.0
    client.send(b'"three"', more=False)
    assert (await client.line())["embedding"][0] == 5.0
    assert await client.line() is None


# lines of two bytes, and blank ones: what is read of them ahead, in which groups they go, and who runs meanwhile


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

    bodies = RequestBodies(max_bytes=1 << 22, max_total_bytes=1 << 24)
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
    task = asyncio.create_task(Edge().app(scope_of("POST", PATH, NDJSON), pieces.get, sent.put))
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


# large lines: what streams of them hold together, and what is left of them once they are embedded

MAX_BYTES = 200_000  # of a body; four times as many of all
LINE = b'"' + b"a " * 50_000 + b'"\n'
NUM_STREAMS = 3
NUM_LINES = 14  # of each: fewer than MAX_OPEN, which would stop it too


def stream_of(num_lines: int) -> Iterator[bytes]:
    for _ in range(num_lines):
        yield LINE


@pytest.mark.holds("Every bound")
async def test_streams_together_read_no_more_than_all_bodies_may_take(read: list[bytes]) -> None:
    edge = Edge(max_bytes=MAX_BYTES)
    edge.tokenizers.gate = asyncio.Event()
    asked = [
        asyncio.ensure_future(call(edge.app, "POST", PATH, stream_of(NUM_LINES), NDJSON)) for _ in range(NUM_STREAMS)
    ]
    num_ticks, seen = 0, (0, 0)
    while num_ticks < 2_000:  # in a row, in which nothing more was read
        await asyncio.sleep(0)
        newest = len(read), edge.shared.bodies._open.num_bytes
        num_ticks, seen = num_ticks + 1 if newest == seen else 0, newest
    num_read, num_bytes = seen
    edge.tokenizers.gate.set()
    answers = [answer.body.splitlines() for answer in await asyncio.gather(*asked)]
    assert edge.shared.bodies._open.num_bytes == 0
    rows = [sum("embedding" in json.loads(line) for line in answer) for answer in answers]

    in_memory = 3 * len(LINE)  # as read, in a body, as a text
    assert 4 * MAX_BYTES <= num_bytes <= 4 * MAX_BYTES + NUM_STREAMS * in_memory  # a line that each has read meanwhile
    assert num_read <= 4 * MAX_BYTES // in_memory + NUM_STREAMS
    assert rows == [NUM_LINES] * NUM_STREAMS  # they have waited, and none was refused


@pytest.mark.holds("Every bound")
def test_nothing_is_left_of_texts_whose_answers_are_not_read() -> None:
    async def run() -> tuple[int, int]:
        edge = Edge(max_bytes=1 << 22)
        pieces: asyncio.Queue[Message] = asyncio.Queue()
        sent: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        task = asyncio.create_task(edge.app(scope_of("POST", PATH, NDJSON), pieces.get, sent.put))
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
