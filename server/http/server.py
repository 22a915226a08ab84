"""An HTTP server on listening sockets that another process owns: it accepts, drains and stops.

Uvicorn's own server would poll ten times a second, handle the process's signals, and never tell a handler that its
client has left.

Other processes may accept from the same sockets. The kernel wakes every process that waits at a socket, and the first
one gets the connection. That alone gave one of four frontends 57 of 64 connections, and another one none. So each says
how many it has (`ConnectionCount`), and one that has more than another waits for a moment: the others come first. If
they are stuck or busy, it accepts after all. docs/decisions/0016-connections.md compares this with a socket for each
frontend (SO_REUSEPORT).
"""

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from server.http.body import STOPPING, ASGIApp
from server.http.h1.protocol import LAST_REQUEST_SECONDS, Connections, HttpProtocol, OnRefused
from server.http.tls import Certificate
from wire.page import Page

_HANDSHAKE_SECONDS = 10.0  # as long as a request's head may take
# For a client to read the rest of an answer and to say goodbye. One that keeps an idle connection does not even notice
# that it should, and must not hold up the end of the server.
_GOODBYE_SECONDS = 3.0
_LAST_HANDSHAKE_SECONDS = 2.0  # for one that is under way at the stop, from when idle connections close
_LAST_ANSWER_SECONDS = 1.0  # for cancelled handlers to answer
_GIVE_WAY_SECONDS = 0.001  # for an idle process to wake up and accept
_SLACK = 1  # connections more than another frontend has
_SLACK_SHARE = 16  # and one more for so many, or many short connections would make all of them wait
_RETRY_SECONDS = 1.0  # for descriptors to become free
_UNSENT_BYTES = 128 * 1024  # that the kernel keeps for a client that does not read; else some megabytes
logger = logging.getLogger("embedline.server")


class ConnectionCount:
    """Notes how many connections a frontend has, beside the others that accept."""

    def __init__(self, page: Page, frontend: int) -> None:
        self._cells = page.num_connections
        self._frontend = frontend
        self._num = 0

    def set(self, num: int) -> None:
        """Note that so many are open now."""
        self._num = num
        self._cells[self._frontend] = num + 1

    def leave(self) -> None:
        """Note that this frontend accepts no more."""
        self._cells[self._frontend] = 0

    def is_exceeded(self) -> bool:
        """Whether another one has so few that it should have the next."""
        least: int = min(cell for cell in (*self._cells.tolist(), self._num + 1) if cell) - 1
        return self._num > least + _SLACK + least // _SLACK_SHARE


class Acceptor:
    """Calls `accepted` with each connection, a socket that does not block. Begins at once; `close` closes the listener.

    Must be made inside a running event loop.
    """

    def __init__(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket], object],
        *,
        count: ConnectionCount | None = None,
    ) -> None:
        self._listener = listener
        self._accepted = accepted
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.TimerHandle | None = None  # the listener is not watched meanwhile
        self._has_failed = False  # since the last connection
        listener.setblocking(False)
        self._loop.add_reader(listener, self._came)

    def close(self) -> None:
        """Accept no more."""
        if self._waiting is None:
            self._loop.remove_reader(self._listener)
        else:
            self._waiting.cancel()
        self._listener.close()

    def reconsider(self) -> None:
        """There are fewer connections than before."""
        if self._waiting is not None and not self._has_failed and not self._has_too_many():
            self._waiting.cancel()
            self._go_on()

    def _came(self) -> None:
        """A connection, which every process at the listener is told of."""
        if self._has_too_many():
            self._wait(_GIVE_WAY_SECONDS)
        else:
            self._accept()

    def _has_too_many(self) -> bool:
        return self._count is not None and self._count.is_exceeded()

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._waiting = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._waiting = None
        self._loop.add_reader(self._listener, self._came)
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process has it, or the client has left
        except OSError as error:
            self._failed(error)
            return
        self._has_failed = False
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:  # asyncio leaves it out: an answer of two parts would take 40 ms
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._accepted(connection)

    def _failed(self, error: OSError) -> None:
        """Accepts none for a while: no descriptor is left, or no memory: it would fail again at once, for as long as a
        connection waits."""
        if not self._has_failed:
            logger.error("connections wait, as none can be accepted: %s", error.strerror)
        self._has_failed = True
        self._wait(_RETRY_SECONDS)


class HttpServer:
    """Call start, then stop, each once."""

    def __init__(
        self,
        app: ASGIApp,
        listeners: Sequence[socket.socket],
        *,
        on_refused: OnRefused = lambda error: None,
        certificate: Certificate | None = None,
        max_connections: int = sys.maxsize,
        keep_alive_timeout: int = 620,
        count: ConnectionCount | None = None,
    ) -> None:
        """The listeners are TCP or Unix sockets. `on_refused` gets the error of what never became a request: its head
        was too long, too slow or not HTTP. With a certificate the server speaks TLS on TCP.

        Of more than `max_connections` the oldest without a request is closed, else the oldest that waits for its
        client, as is one without a request for `keep_alive_timeout`. `count` says how many connections
        others have that accept from the same listeners.
        """
        self._listeners = listeners
        self._tls: dict[str, Any] = {}
        if certificate is not None:
            self._tls = {
                "ssl": certificate.context,
                "ssl_handshake_timeout": _HANDSHAKE_SECONDS,
                "ssl_shutdown_timeout": _GOODBYE_SECONDS,
            }
        self._count = count
        self._connections = Connections(limit=max_connections, on_number=self._number_changed, on_refused=on_refused)
        self._app, self._idle_seconds = app, keep_alive_timeout
        self._acceptors: list[Acceptor] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to accept connections."""
        self._number_changed(0)
        self._acceptors = [Acceptor(listener, self._accepted, count=self._count) for listener in self._listeners]

    def _accepted(self, connection: socket.socket) -> None:
        protocol = HttpProtocol(self._app, self._connections, idle_seconds=self._idle_seconds)
        self._connections.opened(protocol, connection)
        task = asyncio.get_running_loop().create_task(self._connect(protocol, connection))
        self._handshakes.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._handshakes.discard)

    async def _connect(self, protocol: HttpProtocol, connection: socket.socket) -> None:
        """Give the connection to the event loop, and wait for the TLS handshake where there is one."""
        tls = {} if connection.family == socket.AF_UNIX else self._tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection, **tls)
        except OSError:  # no handshake, or not in time
            connection.close()
            self._connections.closed(protocol)

    def _number_changed(self, number: int) -> None:
        if self._count is not None:
            self._count.set(number)
            for acceptor in self._acceptors:
                acceptor.reconsider()

    @property
    def num_connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections.established())

    def drain(self) -> None:
        """Go on accepting; every connection is closed after its next answer, which says so (`connection: close`)."""
        self._connections.is_draining = True
        for connection in self._connections.established():
            connection.close_after_answer()

    def stop_accepting(self) -> None:
        """Close the listeners, and each connection after its next answer."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        if self._count is not None:
            self._count.leave()
            self._count = None
        self.drain()

    async def stop(self, seconds: float) -> None:
        """Wait at most `seconds` for open requests and for clients to read the answers, then close all connections.

        A connection without a request is closed too, half a second later: a request may be on its way.
        """
        self.stop_accepting()
        self._connections.is_stopping = True
        deadline = time.monotonic() + seconds
        established = self._connections.established()
        await self._wait_empty(min(LAST_REQUEST_SECONDS, seconds))
        for connection in established:
            connection.close_if_idle()
        await self._wait_empty(min(_LAST_HANDSHAKE_SECONDS, deadline - time.monotonic()))
        self._connections.end_handshakes()
        await self._wait_empty(deadline - time.monotonic())
        if tasks := self._connections.tasks():
            for task in tasks:
                task.cancel(STOPPING)
            await asyncio.wait(tasks, timeout=_LAST_ANSWER_SECONDS)
        for connection in self._connections.established():
            connection.transport.close()
        await self._wait_empty(_LAST_ANSWER_SECONDS)
        self._connections.end_all()

    async def _wait_empty(self, seconds: float) -> None:
        """Waits until all connections are closed, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._connections.empty.wait(), seconds)
