"""Heads that are refused: of unclear meaning, too large or too slow; and what every answer says."""

import email.utils
import json
import time

import pytest

from server.http.h1.connection import _date_line
from server.http.h1.framing import MAX_HEADERS
from server.http.h1.protocol import HttpProtocol
from server.requests.errors import HeadTooLarge
from tests.server.http.bare import Bare, turns
from tests.server.http.running import CHUNKED, GET, POST, App, Running


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(
    "head",
    [
        b"GET /now\r\n\r\n",
        b"GET /now HTTP/0.9\r\nhost: a\r\n\r\n",
        b"GET /now HTTP/2.0\r\nhost: a\r\n\r\n",
        b"GET /now HTTP/1.2\r\nhost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET  /now HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /now  HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /now HTTP/1.1 \r\nhost: a\r\n\r\n",
        b"GET /now\tHTTP/1.1\r\nhost: a\r\n\r\n",
        b"get /now HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /now HTTP/1.1\r\nhost: a\r\n b\r\n\r\n",
        b"GET /now HTTP/1.1\r\nhost : a\r\n\r\n",
        b"GET /now HTTP/1.1\r\nhost: a/livez?\r\n\r\n",
        b"GET /now HTTP/1.1\r\nhost: user@a\r\n\r\n",
        b"GET /now HTTP/1.1\r\nhost: a b\r\n\r\n",
        b"GET /now HTTP/1.1\r\nhost: a:b\r\n\r\n",
        b"GET /now HTTP/1.1\r\nhost: [::1\r\n\r\n",
        b"GET /now HTTP/1.1\r\nhost: \xff\r\n\r\n",
        b"GET /now HTTP/1.0\r\nhost: a#\r\n\r\n",
        b"GET http://user@a/now HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http:///now HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http://a/now HTTP/1.1\r\n\r\n",
        b"POST /now HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /now HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /now HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n",
        b"POST /now HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET /now HTTP/1.1\r\n\r\n",  # RFC 9112, section 3.2: a request names its host once
        b"GET /now HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n",
        *(
            b"POST /slow HTTP/1.1\r\nhost: a\r\n%b\r\n\r\nhello" % length
            for length in (
                b"content-length: 5\r\ncontent-length: 6",
                b"content-length: 5\r\ncontent-length: 5",
                *(b"content-length: " + value for value in (b"5, 5", b"five", b"-5", b"+5", b"5.0", b"", b"9" * 26)),
                b"content-length: 5\r\ntransfer-encoding: chunked",
                b"no header",
            )
        ),
    ],
)
async def test_heads_that_are_no_http_get_400_and_reach_nothing(server: Bare, app: App, head: bytes) -> None:
    client = server.connect()
    await client.send(head)
    assert client.statuses() == [400]
    assert not client.is_open
    assert app.paths == []


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("host", [b"", b"a", b"a:", b"a.b-c_d:8080", b"127.0.0.1:1", b"[::1]", b"[fe80::1%25eth0]:80"])
async def test_hosts_that_are_taken(server: Bare, host: bytes) -> None:
    client = server.connect()
    await client.send(b"GET /now HTTP/1.1\r\nhost: " + host + b"\r\n\r\n", b"GET /now HTTP/1.0\r\n\r\n")
    assert client.statuses() == [200, 200]  # HTTP/1.0 had no such header


@pytest.mark.holds("Requests and answers", "Hosts and web pages")
@pytest.mark.parametrize("version", [b"1.1\r\nhost: localhost", b"1.0"])
@pytest.mark.parametrize("host", [b"page.example", b"page.example:80", b"[::1]:80"])
async def test_the_host_of_an_absolute_target_outranks_the_header(
    server: Bare, app: App, version: bytes, host: bytes
) -> None:
    client = server.connect()
    await client.send(b"GET http://" + host + b"/now?a HTTP/" + version + b"\r\nx: y\r\n\r\n")
    assert client.statuses() == [200]
    assert app.paths == ["/now"]
    assert sorted(app.headers) == [(b"host", host), (b"x", b"y")]


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("rest", [b"", b"?x=1"])
async def test_an_absolute_target_may_have_no_path(server: Bare, app: App, rest: bytes) -> None:
    client = server.connect()
    await client.send(b"GET http://localhost" + rest + b" HTTP/1.1\r\nhost: a\r\n\r\n")
    await turns()
    assert app.paths == ["/"]


@pytest.mark.parametrize("day", range(0, 366, 17))
def test_the_date_is_written_as_the_standard_library_writes_it(day: int) -> None:
    second = 1_700_000_000 + day * 86_400 + day * 37
    assert _date_line(second) == b"date: " + email.utils.formatdate(second, usegmt=True).encode()


@pytest.mark.holds("Requests and answers")
@pytest.mark.both_loops
async def test_every_answer_has_the_date(running: Running) -> None:
    for request in (GET % b"now", b"what is this\r\n\r\n"):
        async with running.client() as client:
            client.send(request)
            head = (await client.head()).decode()
            (date,) = [line.removeprefix("date: ") for line in head.split("\r\n") if line.startswith("date: ")]
            assert date.endswith(" GMT")
            assert abs(email.utils.parsedate_to_datetime(date).timestamp() - time.time()) < 60


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(("version", "num"), [(b"1.1", 1), (b"1.0", 0)])
async def test_only_http_1_1_is_told_to_continue(server: Bare, version: bytes, num: int) -> None:
    client = server.connect()
    head = b"POST /echo HTTP/%b\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n" % version
    await client.send(head)
    assert client.transport.written.count(b"100 Continue") == num
    await client.send(b"hi")
    assert client.transport.written.endswith(b"hi")


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    ("sent", "more", "refused"),
    [
        (b"\r\n", b"", []),
        (b"\r\n", b"\r\n", []),
        (b"\r", b"\n", []),
        (b"\r\n" * 100_000, b"", []),
        (b"\r\nGET /now HT", b"", [408]),
        (b"\r\nGET /now HT", b"P", [408]),
    ],
)
@pytest.mark.parametrize("before", [[], [GET % b"now"]], ids=["new", "kept alive"])
async def test_empty_lines_have_no_more_time_than_a_head(
    server: Bare, monkeypatch: pytest.MonkeyPatch, sent: bytes, more: bytes, refused: list[int], before: list[bytes]
) -> None:
    """Nobody waits for an answer to empty lines, and the client could take it for that to its next request."""
    monkeypatch.setattr(HttpProtocol, "head_seconds", 0.02)
    client = server.connect()
    await client.send(*before, sent)
    while client.is_open:
        await client.send(more)
    assert client.statuses() == [200] * len(before) + refused


@pytest.mark.holds("Limits")
async def test_empty_lines_are_not_kept(server: Bare) -> None:
    client = server.connect()
    for _ in range(100):
        await client.send(b"\r\n" * 100_000)
        assert client.num_kept == 0
    await client.send(GET % b"now")
    assert client.statuses() == [200]


async def test_an_empty_line_after_a_body_does_not_end_its_request(server: Bare, app: App) -> None:
    """Old clients send one, and the answer may take longer than a head may."""
    client = server.connect()
    await client.send(POST % (b"slow", 2) + b"hi\r\n", b"\r\n")
    assert client.protocol.awaited is None
    app.gate.set()
    await turns()
    assert client.statuses() == [200]
    assert client.is_open
    await client.send(GET % b"now")
    assert client.statuses() == [200, 200]


@pytest.mark.holds("Limits", "Errors")
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
async def test_a_head_that_is_too_large_is_refused_in_openais_shape(server: Bare, app: App, head: bytes) -> None:
    client = server.connect()
    await client.send(GET % b"now", head)  # the limits are each request's own
    assert client.statuses() == [200, 431]
    assert not client.is_open
    assert app.paths == ["/now"]
    assert [type(error) for error in server.refused] == [HeadTooLarge]
    refusal = json.loads(client.transport.written.rpartition(b"\r\n\r\n")[2])
    assert refusal["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.holds("Limits")
async def test_a_head_within_the_limits_is_taken_in_any_pieces(server: Bare) -> None:
    client = server.connect()
    sent = b"GET /now HTTP/1.1\r\nhost: a\r\n" + b"name: value\r\n" * 98 + b"long: " + b"x" * 29_000 + b"\r\n\r\n"
    await client.send(*(sent[start : start + 5_000] for start in range(0, len(sent), 5_000)))
    assert client.statuses() == [200]


@pytest.mark.holds("Limits")
@pytest.mark.both_loops
async def test_a_head_that_does_not_come_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpProtocol, "head_seconds", 0.05)
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


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(("num", "status"), [(MAX_HEADERS, 200), (MAX_HEADERS + 1, 431)])
@pytest.mark.parametrize("form", [GET, CHUNKED], ids=["no body", "chunked"])
async def test_the_number_of_headers_has_a_limit(server: Bare, form: bytes, num: int, status: int) -> None:
    client = server.connect()
    head = (form % b"now").removesuffix(b"\r\n")
    num_more = num - head.count(b"\r\n") + 1
    await client.send(head + b"a: b\r\n" * num_more + b"\r\n")
    assert client.statuses() == [status]


@pytest.mark.holds("Clients that do not read their answers are disconnected", "Limits")
@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"], ids=["kept alive", "closed"])
async def test_a_small_answer_that_nobody_reads_does_not_hold_a_closed_connection(
    server: Bare, monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    """It is too small for the server to be told that the client does not read."""
    monkeypatch.setattr(HttpProtocol, "answer_seconds", 0.01)
    server.server._idle_seconds = 0
    client = server.connect()
    client.transport.is_read = False
    await client.send(b"GET /now HTTP/1.1\r\nhost: a\r\n" + last + b"\r\n")
    while server.server._connections.established():
        await turns(1)
    assert client.transport.is_closing()


@pytest.mark.holds("Clients that do not read their answers are disconnected")
async def test_nor_does_the_begin_of_one_whose_handler_ended(server: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpProtocol, "answer_seconds", 0.01)
    client = server.connect()
    client.transport.is_read = False
    await client.send(GET % b"cut")
    while server.server._connections.established():
        await turns(1)
    assert client.transport.is_closing()
