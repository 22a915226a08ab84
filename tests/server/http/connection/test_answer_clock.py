"""How long a client may take for an answer, however often it reads a piece of it. The loop's time is the test's."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from server.http.body import Receive, Scope, Send
from server.http.h1.connection import BYTES_PER_SECOND
from server.http.h1.protocol import HttpProtocol
from tests.server.http.bare import Bare, Connected, turns
from tests.server.http.running import GET, POST, App

PIECE = 256 * 1024  # what an answer is written in
NUM_PIECES = 40


class Clock:
    """The loop's time stands still until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self._now)

    async def advance(self, seconds: float) -> None:
        """Also runs what is due meanwhile, in steps of a second at most."""
        while seconds > 0:
            self._now += min(1.0, seconds)
            seconds -= 1.0
            await turns(4)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch, server: Bare) -> AsyncIterator[Clock]:
    yield Clock(monkeypatch)
    monkeypatch.undo()


async def asked(server: Bare) -> Connected:
    client = server.connect()
    client.transport.is_read = False
    await client.send(POST % (b"echo", NUM_PIECES * PIECE), b"x" * (NUM_PIECES * PIECE))
    return client


async def read(client: Connected) -> None:
    """All that was written so far; more is written then."""
    client.transport.num_unread = 0
    client.protocol.resume_writing()
    await turns(4)


@pytest.mark.holds("Clients that do not read their answers are disconnected", "Limits")
async def test_who_reads_too_slowly_is_cut_off_however_often_it_reads(clock: Clock, server: Bare) -> None:
    client = await asked(server)
    num_read = 0
    while not client.transport.is_closing():
        await clock.advance(50)  # each piece in a sixth of the time that one alone could take
        if not client.transport.is_closing():
            await read(client)
            num_read += 1
    assert num_read == 6  # 300 s, and one second more for each piece


@pytest.mark.holds("Limits", "Lines")
async def test_the_clock_stands_while_the_server_has_nothing_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is written line by line may take hours."""
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": await pieces.get(), "more_body": True})

    clock, server = Clock(monkeypatch), Bare(app)
    client = server.connect()
    client.transport.is_read = False
    await client.send(GET % b"")
    for _ in range(3):
        pieces.put_nowait(b"x" * PIECE)
        await turns(4)
        await clock.advance(90)  # the client does not read
        await read(client)
        await clock.advance(2 * HttpProtocol.answer_seconds)
    assert not client.transport.is_closing()
    pieces.put_nowait(b"x" * PIECE)
    await turns(4)
    await clock.advance(40)  # 310 s in all, and one second more for each piece that was read
    assert client.transport.is_closing()
    monkeypatch.undo()
    server.close()


@pytest.mark.holds("Limits")
async def test_who_reads_at_the_lowest_rate_gets_all(clock: Clock, server: Bare) -> None:
    client = await asked(server)
    await clock.advance(HttpProtocol.answer_seconds - 5)
    for _ in range(NUM_PIECES + 1):
        await clock.advance(PIECE / BYTES_PER_SECOND)
        await read(client)
    assert not client.transport.is_closing()
    assert client.protocol.answer_clock._timer is None
    await clock.advance(5)
    assert not client.transport.is_closing()


async def test_the_next_answer_has_a_clock_of_its_own(clock: Clock, server: Bare, app: App) -> None:
    client = server.connect()
    for _ in range(3):
        client.transport.is_read = False
        await client.send(POST % (b"echo", 2 * PIECE), b"x" * (2 * PIECE))
        await clock.advance(200)
        for _ in range(3):
            await read(client)
    assert not client.transport.is_closing()
    assert app.paths == ["/echo"] * 3
