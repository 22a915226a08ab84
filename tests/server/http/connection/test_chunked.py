"""Chunked bodies: fields after one become no headers and are bounded as heads are; many small chunks hold up nobody."""

import pytest

from server.http.h1.connection import Awaited
from server.http.h1.framing import _MAX_CUTS, _MAX_LINES, _SLICE_BYTES, MAX_HEAD_BYTES, MAX_HEADERS
from server.http.h1.protocol import HttpProtocol
from server.requests.errors import HeadTooLarge
from tests.server.http.bare import Bare, Connected, turns
from tests.server.http.running import CHUNKED, GET, App, Running

READ = 256 * 1024  # what one read gives at most


@pytest.mark.holds("Requests and answers")
@pytest.mark.both_loops
async def test_trailers_become_no_headers(running: Running) -> None:
    async with running.client() as client:
        for _ in range(2):
            client.send(CHUNKED % b"echo", b"2\r\nhi\r\n0\r\nauthorization: Bearer sesame\r\nhost: b\r\n\r\n")
            assert await client.answer() == (200, b"hi")
            assert running.app.headers == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]
        client.send(GET % b"now")
        assert await client.answer() == (200, b"/now")


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(
    "trailer", [b"connection: close", b"connection: upgrade\r\nupgrade: h2c", b"expect: 100-continue"]
)
async def test_trailers_change_nothing_for_the_requests_after_them(server: Bare, app: App, trailer: bytes) -> None:
    client = server.connect()
    sent = CHUNKED % b"echo" + b"2\r\nhi\r\n0\r\n" + trailer + b"\r\n\r\n"
    await client.send(sent + GET % b"now")
    await client.send(GET % b"now")
    await turns()
    assert app.paths == ["/echo", "/now", "/now"]
    assert client.statuses() == [200, 200, 200]
    assert client.is_open


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("path", [b"echo", b"now"], ids=["the body is waited for", "answered before the body came"])
@pytest.mark.parametrize(
    "trailers",
    [b"a: " + b"x" * 10_000_000, b"x" * 10_000_000, b"a: b\r\n" * 1_000_000],
    ids=["one endless value", "one endless name", "endless fields"],
)
async def test_endless_trailers_end(server: Bare, path: bytes, trailers: bytes) -> None:
    client = server.connect()
    await client.send(CHUNKED % path, b"2\r\nhi\r\n0\r\n")
    num_sent = 0
    while client.is_open and num_sent < len(trailers):
        await client.send(trailers[num_sent : num_sent + READ])
        num_sent += READ

    assert not client.is_open
    assert num_sent <= MAX_HEAD_BYTES + 2 * READ
    assert client.statuses() == ([431] if path == b"echo" else [200])
    assert [type(error) for error in server.refused] == ([HeadTooLarge] if path == b"echo" else [])


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    ("trailers", "status"),
    [
        (b"a: b\r\n" * MAX_HEADERS, 200),
        (b"a: b\r\n" * (MAX_HEADERS + 1), 431),
        (b"a: " + b"x" * (MAX_HEAD_BYTES - 10) + b"\r\n", 200),
        (b"a: " + b"x" * (MAX_HEAD_BYTES + 1) + b"\r\n", 431),
    ],
    ids=["as many", "too many", "as long", "too long"],
)
@pytest.mark.parametrize("size", [None, 1000], ids=["one piece", "many pieces"])
async def test_trailers_have_the_limits_of_heads(server: Bare, trailers: bytes, status: int, size: int | None) -> None:
    client = server.connect()
    sent = CHUNKED % b"echo" + b"2\r\nhi\r\n0\r\n" + trailers + b"\r\n"
    step = size or len(sent)
    await client.send(*(sent[start : start + step] for start in range(0, len(sent), step)))
    assert client.statuses() == [status]
    assert client.is_open == (status == 200)


@pytest.mark.holds("Limits")
async def test_the_lengths_of_chunks_are_no_trailers(server: Bare) -> None:
    """Their bytes are not counted, however the chunks are cut up."""
    chunk = b"%x\r\n" % 50_000 + b"x" * 50_000 + b"\r\n"
    body = chunk * 8 + b"1\r\ny\r\n" * 20_000 + b"0\r\n\r\n"
    for size in (7001, 65_536, len(body)):
        client = server.connect()
        await client.send(CHUNKED % b"echo", *(body[start : start + size] for start in range(0, len(body), size)))
        await turns(100)  # many small chunks come in slices
        assert client.statuses() == [200]
        assert client.transport.written.endswith(b"x" * 50_000 + b"y" * 20_000)


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("cut", range(1, 9))
async def test_what_follows_a_chunked_body_is_the_next_request(server: Bare, app: App, cut: int) -> None:
    """However the end of the body is cut up by the network."""
    client = server.connect()
    sent = CHUNKED % b"echo" + b"2\r\nhi\r\n0\r\n\r\n" + GET % b"now"
    end = len(sent) - len(GET % b"now")
    await client.send(sent[: end - cut], sent[end - cut :])
    assert client.statuses() == [200, 200]
    assert app.paths == ["/echo", "/now"]


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("path", [b"echo", b"now"])
async def test_after_a_body_of_empty_lines_a_request_that_was_sent_ahead_is_not_read(
    server: Bare, app: App, path: bytes
) -> None:
    """Looking for the end of such a body would cost more than the body."""
    client = server.connect()
    body = b"\r\n\r\n" * _MAX_CUTS
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    await client.send(CHUNKED % path, chunk * 2 + b"0\r\n\r\n" + GET % b"ahead")
    await turns()
    assert app.paths == [f"/{path.decode()}"]
    assert client.statuses() == [200]
    assert not client.is_open
    if path == b"echo":
        assert b"connection: close" in client.transport.written
        assert client.transport.written.endswith(body * 2)


@pytest.mark.holds("Limits")
async def test_what_comes_after_an_early_answer_has_a_limit(server: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpProtocol, "max_rest_bytes", 1_000_000)
    for head in (CHUNKED % b"now", b"POST /now HTTP/1.1\r\nhost: a\r\ncontent-length: 90000000\r\n\r\n"):
        client = server.connect()
        await client.send(head)
        assert client.statuses() == [200]
        assert await sent_until_closed(client, b"%x\r\n%b\r\n" % (50_000, b"x" * 50_000)) <= 1_100_000
        assert client.statuses() == [200]


@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"])
async def test_who_still_sends_may_read_an_early_answer_that_closes(server: Bare, last: bytes) -> None:
    """A connection that is closed while its client sends is reset, and the answer is lost."""
    if not last:
        server.server.drain()
    client = server.connect()
    await client.send(b"POST /now HTTP/1.1\r\nhost: a\r\n" + last + b"content-length: 90\r\n\r\nthe begin")
    assert client.statuses() == [200]
    assert b"connection: close" in client.transport.written
    assert (client.transport.has_ended, client.transport.is_closing()) == (True, False)
    await client.send(b"x" * 81)
    assert client.statuses() == [200]


async def sent_until_closed(client: Connected, piece: bytes) -> int:
    """Bytes that were sent before the server closed; at most 10 MB."""
    num_sent = 0
    while not client.transport.is_closing() and num_sent < 10_000_000:
        await client.send(piece)
        num_sent += len(piece)
    return num_sent


@pytest.mark.holds("Limits")
@pytest.mark.both_loops
async def test_the_rest_of_a_body_does_not_take_for_ever_after_its_answer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpProtocol, "rest_seconds", 0.05)
    async with running.client() as client:
        client.send(b"POST /now HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab")
        assert await client.answer() == (200, b"/now")
        assert await client.rest() == b""  # and nothing more has come


@pytest.mark.both_loops
async def test_a_connection_whose_rest_has_come_is_closed_when_it_stays_idle(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running.client() as client:
        client.send(b"POST /now HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n")
        assert await client.answer() == (200, b"/now")
        (connection,) = running.server._connections.established()
        seen = [connection.awaited]
        client.send(b"abcde")
        while connection._is_in_body:
            await turns(1)
        assert [*seen, connection.awaited] == [Awaited.REST, Awaited.REQUEST]


async def test_who_still_sends_after_an_answer_counts_as_idle(server: Bare) -> None:
    """So that such clients can't take all of a limited number of connections."""
    for sent, is_idle in (
        (CHUNKED % b"now", True),
        (b"what is this\r\n\r\n", True),
        (CHUNKED % b"echo" + b"no length\r\n", True),
        (CHUNKED % b"echo", False),
    ):
        client = server.connect()
        await client.send(sent)
        assert client.protocol.is_idle == is_idle, sent


SMALL = b"1\r\ny\r\n"
NUM_CHUNKS = 40_000  # about what one read gives


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each piece that the parser was given."""
    lengths = []
    feed = HttpProtocol._feed

    def counted(self: HttpProtocol, piece: bytes) -> None:
        lengths.append(len(piece))
        feed(self, piece)

    monkeypatch.setattr(HttpProtocol, "_feed", counted)
    return lengths


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("path", [b"echo", b"now"], ids=["the body is waited for", "answered before the body came"])
async def test_many_small_chunks_are_parsed_a_slice_a_turn(server: Bare, fed: list[int], path: bytes) -> None:
    client, other = server.connect(), server.connect()
    await client.send(CHUNKED % path)
    fed.clear()
    client.protocol.data_received(SMALL * NUM_CHUNKS + b"0\r\n\r\n")
    assert fed == [_SLICE_BYTES]
    assert client.transport.is_paused
    for num_slices in range(2, 5):
        await turns(1)
        assert fed == [_SLICE_BYTES] * num_slices
    await other.send(GET % b"now")
    assert other.statuses() == [200]
    assert client.protocol._is_in_body

    await turns(2 * len(SMALL) * NUM_CHUNKS // _SLICE_BYTES)
    assert client.statuses() == [200]
    assert client.transport.written.endswith(b"y" * NUM_CHUNKS if path == b"echo" else b"/now")
    assert not client.transport.is_paused
    await client.send(GET % b"now")
    assert client.statuses() == [200, 200]


@pytest.mark.holds("Limits")
async def test_what_follows_many_small_chunks_waits_for_its_turn(server: Bare, app: App, fed: list[int]) -> None:
    client = server.connect()
    await client.send(CHUNKED % b"echo" + SMALL * NUM_CHUNKS + b"0\r\n\r\n" + GET % b"now")
    assert max(fed) == _SLICE_BYTES
    await turns(2 * len(SMALL) * NUM_CHUNKS // _SLICE_BYTES)
    assert client.statuses() == [200, 200]
    assert app.paths == ["/echo", "/now"]
    assert client.protocol.awaited is Awaited.REQUEST


async def test_who_leaves_or_breaks_the_rules_between_two_slices_ends(server: Bare) -> None:
    for bad, statuses in ((b"", []), (b"no length\r\n" + SMALL * _MAX_LINES, [400])):
        client = server.connect()
        await client.send(CHUNKED % b"echo")
        client.protocol.data_received(SMALL * _MAX_LINES + bad)
        if not bad:
            client.transport.abort()
        await turns(10)
        assert client.statuses() == statuses
        assert client.num_kept == 0
        assert client.protocol._next_slice is None


async def test_a_handler_that_does_not_read_its_body_still_stops_the_reading(server: Bare) -> None:
    """Slices hold the reading too; when they end, a body that nobody takes must not grow."""
    client = server.connect()
    client.protocol.data_received(CHUNKED % b"echo")  # the handler has not begun
    assert client.protocol._exchange is not None
    client.protocol._exchange.take(b"x" * 100_000)
    client.protocol.data_received(SMALL * (_MAX_LINES // 2 + 1))
    assert client.transport.is_paused
    client.protocol._read_slice()
    assert client.protocol._received == b""
    assert client.transport.is_paused
    await turns()
    assert not client.transport.is_paused


async def test_large_chunks_are_parsed_as_they_come(server: Bare, fed: list[int]) -> None:
    client = server.connect()
    await client.send(CHUNKED % b"echo")
    fed.clear()
    chunk = b"%x\r\n" % 60_000 + b'{"a":\n' * 10_000 + b"\r\n"
    await client.send(chunk * 4, chunk + SMALL * 900 + b"0\r\n\r\n")
    assert len(fed) == 2
    assert client.statuses() == [200]


@pytest.mark.parametrize("chunk", [b"1\ny\r\n", b"1\r\ny\n"])
async def test_lines_of_chunks_have_no_other_end(server: Bare, chunk: bytes) -> None:
    """Chunks are counted by it."""
    client = server.connect()
    await client.send(CHUNKED % b"echo" + chunk + SMALL)
    assert client.statuses() == [400]
