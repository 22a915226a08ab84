"""Bodies of very many small chunks: other connections have their turn while one is parsed."""

import pytest

from server.http.protocol import _MAX_LINES, _SLICE_BYTES, Protocol
from tests.server.http.bare import Bare, turns
from tests.server.http.running import CHUNKED, GET, App

SMALL = b"1\r\ny\r\n"
NUM_CHUNKS = 40_000  # about what one read gives


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each piece that the parser was given."""
    lengths = []
    feed = Protocol._feed

    def counted(self: Protocol, piece: bytes) -> None:
        lengths.append(len(piece))
        feed(self, piece)

    monkeypatch.setattr(Protocol, "_feed", counted)
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
    assert client.protocol.timeout_keep_alive_task is not None


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
    cycle = client.protocol.cycle
    cycle.body += b"x" * 100_000
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
