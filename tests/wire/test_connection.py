"""Connections over real Unix sockets: order, loss, and being made again."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import uvloop

from tests.server_e2e.running import PATIENCE
from wire.connection import MAX_UNSENT_BYTES, FrameConnection, Link, serve

KIND = 0x0777


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "it.sock"))
        listening.listen(16)
        listening.setblocking(False)
        yield listening


class EchoServer:
    """Sends every frame back."""

    def __init__(self) -> None:
        self.connections: list[FrameConnection] = []
        self.num_lost = 0
        self.all_lost = asyncio.Event()

    async def start(self, listener: socket.socket) -> None:
        self.server = await serve(listener.dup(), self._received, self.connections.append, self._lost)

    async def stop(self) -> None:
        """Everything closed, but the listening socket, which is the supervisor's."""
        self.server.close()
        for connection in self.connections:
            connection.close()
        async with asyncio.timeout(PATIENCE):
            await self.all_lost.wait()

    def _received(self, connection: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        connection.send(kind, frame_id, [payload])

    def _lost(self, connection: FrameConnection) -> None:
        self.num_lost += 1
        if self.num_lost == len(self.connections):
            self.all_lost.set()


class Client:
    """A link and what came over it."""

    def __init__(self, path: str) -> None:
        self.received: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self.ups: asyncio.Queue[None] = asyncio.Queue()
        self.num_downs = 0
        self.link = Link(path, on_frame=self._frame, on_up=lambda: self.ups.put_nowait(None), on_down=self._down)
        self.link.open()

    def _frame(self, kind: int, frame_id: int, payload: memoryview) -> None:
        self.received.put_nowait((frame_id, bytes(payload)))

    def _down(self) -> None:
        self.num_downs += 1


async def test_frames_arrive_whole_and_in_order(listener: socket.socket) -> None:
    echo = EchoServer()
    await echo.start(listener)
    client = Client(listener.getsockname())
    await client.ups.get()
    payloads = [b"", b"x" * 10, b"y" * 2_000_000, b"z"]
    for frame_id, payload in enumerate(payloads):
        client.link.send(KIND, frame_id, [payload])
    assert [await client.received.get() for _ in payloads] == list(enumerate(payloads))
    client.link.close()
    await echo.stop()


async def test_a_link_is_made_again_while_its_server_is_away(listener: socket.socket) -> None:
    first = EchoServer()
    await first.start(listener)
    client = Client(listener.getsockname())
    await client.ups.get()
    client.link.send(KIND, 1, [b"before"])
    assert await client.received.get() == (1, b"before")

    await first.stop()
    await client.ups.get()  # connected again, though nobody accepts yet
    assert client.num_downs == 1
    client.link.send(KIND, 2, [b"while nobody was there"])

    second = EchoServer()
    await second.start(listener)
    assert await client.received.get() == (2, b"while nobody was there")
    client.link.close()
    await second.stop()


async def test_a_stranger_is_cut_off(listener: socket.socket) -> None:
    echo = EchoServer()
    await echo.start(listener)
    reader, writer = await asyncio.open_unix_connection(listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\n" + b"\0" * 64)
    await reader.read()  # until it is cut
    assert echo.num_lost == 1
    writer.close()
    await writer.wait_closed()
    await echo.stop()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_frame_that_comes_with_the_connection_finds_it_up(
    listener: socket.socket, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """A server may speak first, and what is sent in answer to that must not be dropped."""

    async def scenario() -> None:
        order: list[str] = []
        echoed: asyncio.Queue[bytes] = asyncio.Queue()
        accepted: list[FrameConnection] = []

        def made(connection: FrameConnection) -> None:
            accepted.append(connection)
            connection.send(KIND, 0, [b"welcome"])

        def on_server(connection: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
            echoed.put_nowait(bytes(payload))

        def on_frame(kind: int, frame_id: int, payload: memoryview) -> None:
            order.append("frame")
            link.send(KIND, 1, [b"thanks"])

        gone = asyncio.Event()
        server = await serve(listener.dup(), on_server, made, lambda _: gone.set())
        link = Link(listener.getsockname(), on_frame=on_frame, on_up=lambda: order.append("up"), on_down=lambda: None)
        link.open()
        for _ in range(20):  # other work on the loop, so that the greeting is there before `open` goes on
            await asyncio.sleep(0)
            sum(range(200_000))
        assert await asyncio.wait_for(echoed.get(), PATIENCE) == b"thanks"
        assert order == ["up", "frame"]
        link.close()
        await gone.wait()
        server.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario())


async def test_a_peer_that_does_not_read_is_cut_once(caplog: pytest.LogCaptureFixture) -> None:
    """However many frames were still to be sent."""
    transport = Mock(spec=asyncio.Transport)
    transport.get_write_buffer_size.return_value = MAX_UNSENT_BYTES + 1
    transport.is_closing.side_effect = lambda: transport.abort.called
    connection = FrameConnection(lambda *_: None, lambda _: None)
    connection.connection_made(transport)
    for frame_id in range(3):
        connection.send(1, frame_id)
    transport.abort.assert_called_once()
    assert [record.getMessage() for record in caplog.records] == ["a peer stopped reading; its connection is cut"]
