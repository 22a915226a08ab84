"""Several acceptors at one listening socket, as frontends have it: who gets the next connection, and when."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from server.http import server
from server.http.server import Acceptor, ConnectionCount
from wire.page import Page

pytestmark = pytest.mark.both_loops


class Port:
    """A listening socket that any number of frontends accept from."""

    def __init__(self, *, num_frontends: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.page = Page.create(num_frontends=num_frontends, num_managers=1, num_models=1)
        self.accepted: asyncio.Queue[int] = asyncio.Queue()  # by which frontend
        self._sockets: list[socket.socket] = []
        self._acceptors: list[Acceptor] = []

    def count(self, frontend: int, num: int) -> ConnectionCount:
        """Of a frontend that has so many connections."""
        count = ConnectionCount(self.page, frontend)
        count.set(num)
        return count

    def accept(self, frontend: int, count: ConnectionCount) -> Acceptor:
        """The frontend begins to."""

        def accepted(connection: socket.socket) -> None:
            assert not connection.getblocking()
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 * 1024
            self._sockets.append(connection)
            self.accepted.put_nowait(frontend)

        self._acceptors.append(Acceptor(self._listener.dup(), accepted, count=count))
        return self._acceptors[-1]

    def connect(self) -> None:
        self._sockets.append(socket.create_connection(self._listener.getsockname()))

    def close(self) -> None:
        for one in self._acceptors:
            one.close()
        for connection in [self._listener, *self._sockets]:
            connection.close()


@contextlib.asynccontextmanager
async def listening(*, num_frontends: int = 2) -> AsyncIterator[Port]:
    port = Port(num_frontends=num_frontends)
    try:
        yield port
    finally:
        port.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives way waits for longer than any test."""
    monkeypatch.setattr(server, "_GIVE_WAY_SECONDS", 1000)


@pytest.mark.holds("Connections")
async def test_who_has_more_lets_others_come_first(patient: None) -> None:
    async with listening(num_frontends=3) as port:
        shares = [port.count(index, num) for index, num in enumerate((9, 4, 3))]
        for index, count in enumerate(shares):
            port.accept(index, count)
        for _ in range(20):
            port.connect()
            assert await port.accepted.get() in (1, 2)


@pytest.mark.holds("Connections")
async def test_equal_ones_do_not_wait_for_each_other(patient: None) -> None:
    async with listening() as port:
        for index, num in enumerate((64, 60)):  # one in sixteen is no difference
            port.accept(index, port.count(index, num))
        for _ in range(20):
            port.connect()
            await port.accepted.get()


@pytest.mark.holds("Connections")
async def test_who_has_more_accepts_after_all_when_nobody_else_does() -> None:
    async with listening() as port:
        port.count(1, 0)  # it is stuck
        port.accept(0, port.count(0, 100))
        for _ in range(5):
            port.connect()
        assert [await port.accepted.get() for _ in range(5)] == [0] * 5


@pytest.mark.holds("Connections")
@pytest.mark.parametrize("is_gone", ["it stops", "it has died"])
async def test_nobody_waits_for_one_that_does_not_accept(patient: None, is_gone: str) -> None:
    async with listening() as port:
        other = port.count(1, 0)
        port.accept(0, port.count(0, 100))
        if is_gone == "it stops":
            other.leave()
        else:
            port.page.clear_frontend(1)
        port.connect()
        assert await port.accepted.get() == 0


async def test_who_waits_goes_on_once_it_has_no_more_than_others(patient: None) -> None:
    async with listening() as port:
        port.count(1, 2)
        own = port.count(0, 9)
        waiting = port.accept(0, own)
        port.connect()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(port.accepted.get(), 0.05)
        own.set(8)
        waiting.reconsider()
        assert port.accepted.empty()
        own.set(3)
        waiting.reconsider()
        assert await port.accepted.get() == 0


class ShortOfDescriptors(socket.socket):
    """A listener at which `accept` fails a few times."""

    failures = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.holds("Connections", "Limits")
async def test_connections_wait_while_no_descriptor_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.01)

    caplog.set_level(logging.INFO)
    accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
    listener = ShortOfDescriptors()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    accepting = Acceptor(listener, accepted.put_nowait)
    with socket.create_connection(listener.getsockname()):
        (await accepted.get()).close()
    accepting.close()
    assert caplog.messages == ["connections wait, as none can be accepted: Too many open files"]
