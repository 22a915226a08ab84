"""Bodies of lines (NDJSON): each line has its answer, in order, while more of them comes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import pytest

from server.http import line_streams
from server.http.body import Message, Receive
from server.requests.errors import BodyTooSlow, InvalidRequest, Overloaded
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Called, Edge, call
from wire.vocabulary import RequestClass

PATH = "/v1/embeddings"
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


@pytest.mark.holds("Lines")
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


@pytest.mark.holds("Lines")
def test_the_work_of_lines_is_counted_for_their_key() -> None:
    keys = [ApiKey("one", digest(b"other")), ApiKey("two", digest(b"secret"))]
    called, edge = ask(b'"one"\n[2,3]\n', lambda: Edge(keys=keys), {"authorization": "Bearer secret"})
    assert called.status == 200
    assert {submission.key for submission in edge.managers.submitted} == {1}


@pytest.mark.holds("Lines")
@pytest.mark.parametrize(
    ("line", "param", "message"),
    [
        (b'"', "line", "line is not valid JSON in UTF-8"),
        (b'"a","b"', "line", "line is not valid JSON in UTF-8"),
        (b'{"input":"a"} 5', "line", "line is not valid JSON in UTF-8"),
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


@pytest.mark.holds("Lines")
def test_an_id_is_any_text_or_number_and_stays_with_an_error() -> None:
    ids = [b'"a"', b"1.5", b"1e3", b"-7", b"9" * 30]
    called, _ = ask(b"\n".join(b'{"input":"a","id":%b}' % each for each in (*ids, b"null")))
    *with_ids, without = called.body.splitlines()
    for line, own_id in zip(with_ids, ids, strict=True):
        assert b',"id":%b,"embedding"' % own_id in line
    assert b'{"index":5,"embedding"' in without

    wrong, _ = ask(b'{"id":"a","input":5}\n{"id":"b","input":"a","on_error":"null"}\n{"id":"d"}\n{"id":1,"input":""}')
    assert [(each["id"], "error" in each) for each in values(wrong)] == [(each, True) for each in ("a", "b", "d", 1)]


@pytest.mark.holds("Lines", "Errors of single items")
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


@pytest.mark.holds("Lines")
@pytest.mark.parametrize("cut", [1, 2, 3, 100])
def test_a_byte_order_mark_may_stand_before_the_first_line(cut: int) -> None:
    for before in (b"", b"\n", b" \r\n"):
        body = b"\xef\xbb\xbf" + before + b'"one"\n"three"'
        called, _ = ask([body[start : start + cut] for start in range(0, len(body), cut)])
        assert [each["embedding"][0] for each in values(called)] == [3.0, 5.0]

    called, _ = ask(b'"one"\n\xef\xbb\xbf"three"')
    assert ["error" in each for each in values(called)] == [False, True]


@pytest.mark.holds("Lines")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_lines_in_another_encoding_get_a_sentence(encoding: str) -> None:
    called, _ = ask('"one"\n"three"\n'.encode(encoding))

    assert called.status == 400
    assert called.error()["message"] == "the body is not valid JSON in UTF-8; it looks like UTF-16 or UTF-32"


@pytest.mark.holds("Lines")
def test_lines_that_ask_for_the_same_are_computed_together() -> None:
    body = b'"a"\n"bb"\n{"input":"ccc","dimensions":2}\n{"input":"d","dimensions":2}\n"e"\n""\n"ff"'
    called, edge = ask(body)

    assert [each.seqlens for each in edge.managers.submitted] == [[1, 2], [3, 1], [1, 2]]
    assert [each.get("embedding", [0])[0] for each in values(called)] == [1, 2, 3, 1, 1, 0, 2]


@pytest.mark.holds("Lines")
def test_forms_of_rows_and_what_was_cut_are_told_in_each_line() -> None:
    body = b'{"input":"a","encoding_format":"base64"}\n{"input":"a","output_dtype":"int8"}\n"%b"' % (b"x" * 17)
    called, _ = ask(body, headers={"accept": "application/octet-stream"})

    base64, scaled, cut = values(called)
    assert len(base64["embedding"]) == 44
    assert (scaled["embedding"], scaled["scale"]) == ([127] * 8, "row")
    assert cut["truncated"] is True


@pytest.mark.holds("Lines")
def test_what_fails_before_the_answer_begins_has_its_status() -> None:
    assert ask(b"\n \r\n")[0].error()["message"] == "the body has no lines"
    assert ask(b'"a"', headers={"content-encoding": "gzip"})[0].status == 415
    assert ask(b'"a"', headers={"content-type": "application/x-ndjson;charset=utf-16"})[0].status == 415
    assert ask(b'"a"', headers={"content-type": 'application/x-ndjson; Charset="UTF-8"'})[0].status == 200
    with pytest.raises(InvalidRequest, match=r"need HTTP/1\.1"):
        line_streams.check_head({b"content-type": line_streams.LINES}, "1.0")
    assert ask(b'"a"', lambda: Edge(is_loaded=False))[0].status == 503
    assert ask(b'"a"', lambda: Edge(keys=[ApiKey("team", digest(b"sesame"))]))[0].status == 401
    assert ask(b'"%b"' % (b"x" * line_streams.MAX_LINE_BYTES))[0].status == 413


@pytest.mark.holds("Lines")
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


@pytest.mark.holds("Lines")
async def test_a_server_that_stays_too_busy_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_streams, "_MAX_WAIT_SECONDS", 0.01)

    def busy(asked: Any) -> Any:
        raise Overloaded("too much", retry_after=0.001)

    edge = Edge()
    monkeypatch.setattr(edge.admission, "admit", busy)
    assert (await call(edge.app, "POST", PATH, b'"one"\n"three"', NDJSON)).status == 429


Test = Callable[[Edge, "Client"], Awaitable[None]]


class Client:
    """Sends pieces of a body when it likes, and reads answers when it likes."""

    def __init__(self, edge: Edge) -> None:
        self.pieces: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        headers = [(name.encode(), value.encode()) for name, value in NDJSON.items()]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers}
        self.task = asyncio.ensure_future(edge.app(scope, self.pieces.get, self.sent.put))

    def send(self, body: bytes, *, more: bool = True) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def line(self) -> Any:
        body = (await self.sent.get())["body"]
        return json.loads(body) if body else None


def with_client(test: Test) -> None:
    async def run() -> None:
        edge = Edge(max_bytes=1 << 20)
        await test(edge, Client(edge))

    asyncio.run(run())


@pytest.mark.holds("Lines")
def test_answers_leave_while_more_lines_come_and_the_end_says_why() -> None:
    async def test(edge: Edge, client: Client) -> None:
        client.send(b'"one"\n"thr')
        assert (await client.sent.get())["status"] == 200
        assert (await client.line())["embedding"][0] == 3.0
        client.send(b'ee"\n')
        assert (await client.line())["embedding"][0] == 5.0
        edge.state.draining = True
        client.send(b'"last"\n')
        assert (await client.line())["embedding"][0] == 4.0
        assert (await client.line())["error"]["code"] == "not_ready"
        assert await client.line() is None
        await client.task
        counts: list[list[object]] = edge.metrics.drain()["counts"]
        assert ["embedline_requests_total", PATH, "none", "503", 1] in counts

    with_client(test)


@pytest.mark.holds("Lines")
def test_no_more_lines_are_read_than_may_be_open() -> None:
    async def test(edge: Edge, client: Client) -> None:
        for _ in range(10 * line_streams.MAX_OPEN):
            client.send(b'"x"\n')
        await client.sent.get()  # the head; nothing after it is read
        while edge.admission.requests.num_open and len(edge.managers.submitted) < line_streams.MAX_OPEN:
            await edge.managers.arrivals.get()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(edge.managers.submitted) <= line_streams.MAX_OPEN + 2
        client.task.cancel()
        await asyncio.gather(client.task, return_exceptions=True)
        assert edge.admission.requests.num_open == 0
        assert not edge.page.admitted_tokens.any()

    with_client(test)


@pytest.mark.holds("Lines")
def test_a_body_that_stops_ends_after_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.body._PIECE_SECONDS", 0.01)

    async def test(edge: Edge, client: Client) -> None:
        client.send(b'"one"\n')
        await client.sent.get()
        assert (await client.line())["embedding"][0] == 3.0
        assert (await client.line())["error"]["code"] == "body_too_slow"
        assert await client.line() is None

    with_client(test)


@pytest.mark.holds("Lines")
def test_a_client_that_waits_for_an_answer_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(edge: Edge, client: Client) -> None:
        edge.managers.gate = gate = asyncio.Event()
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

    with_client(test)
