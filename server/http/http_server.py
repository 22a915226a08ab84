"""An HTTP server on a listening socket that another process owns.

Of uvicorn it uses the configuration and the protocol. Uvicorn's own Server polls ten times a second, handles the
process's signals, and never tells a handler that its client has left.
"""

import array
import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any, cast

from uvicorn import Config
from uvicorn.server import ServerState

from server.http.acceptor import Acceptor, ConnectionCount
from server.http.body import STOPPING, WRITE_BUFFER_BYTES, ASGIApp
from server.http.protocol import HttpProtocol, OnRefused
from server.http.tls import Certificate

_HANDSHAKE_SECONDS = 10.0  # as long as a request's head may take
# For a client to read the rest of an answer and to say goodbye. One that keeps an idle connection does not even notice
# that it should, and must not hold up the end of the server.
_GOODBYE_SECONDS = 3.0
_LAST_ANSWER_SECONDS = 1.0  # for cancelled handlers to answer
_LAST_REQUEST_SECONDS = 0.5  # for a request that is on its way when the server stops


class _State(ServerState):
    """Uvicorn's state, with an event for the end of the last connection, and a limit on them.

    by_age  connections, the oldest first; also those in the middle of a TLS handshake
    """

    def __init__(self, max_connections: int, on_number: Callable[[int], None]) -> None:
        """`on_number` is called with the number of connections when it changes."""
        super().__init__()
        self.empty = asyncio.Event()
        self.is_draining = False
        self.is_stopping = False
        self.by_age: dict[_Protocol, socket.socket] = {}
        self._max_connections = max_connections
        self._on_number = on_number

    def opened(self, connection: "_Protocol", accepted: socket.socket) -> None:
        """Note a new connection. Where there is one too many, the oldest gives way that has no request, else that waits
        for its client."""
        self.by_age[connection] = accepted
        if len(self.by_age) > self._max_connections:
            *others, _ = self.by_age
            idle = (one for one in others if one.is_idle)
            waiting = (one for one in others if one.waits_for_client)
            self.end(next(idle, None) or next(waiting, None) or connection)
        self._on_number(len(self.by_age))

    def end(self, connection: "_Protocol") -> None:
        """Close it at once; it counts no more."""
        accepted = self.by_age.pop(connection)
        if connection.transport is not None:
            connection.transport.abort()
            return
        with contextlib.suppress(OSError):  # the client has ended the handshake, too
            accepted.shutdown(socket.SHUT_RDWR)

    def closed(self, connection: "_Protocol") -> None:
        """Count the connection no more."""
        if self.by_age.pop(connection, None) is not None:
            self._on_number(len(self.by_age))
        if not self.by_age:
            self.empty.set()


class _Protocol(HttpProtocol):
    """Tells the state of its end. While the server drains, every answer closes it."""

    server_state: _State

    def _read_on(self) -> None:
        super()._read_on()
        if self.server_state.is_draining:
            self.close_after_answer()

    def close_after_answer(self) -> None:
        """The request that is being answered is the last, unless others were sent ahead: they are answered too."""
        if self.cycle is not None and not self.cycle.response_started and not self._received:
            self.cycle.keep_alive = False

    def close_if_idle(self) -> None:
        """Close it unless something was received that is still to be answered, here or in the kernel."""
        is_idle = self._is_answered() and not self._received
        if is_idle and not self.transport.is_closing() and not _num_unread(self.transport):
            self.transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its answer, and no answer has to leave yet. What still comes of an answered or
        refused request does not count, nor does a handshake, or a few such clients could take all connections."""
        is_open = self.cycle is not None and not self.cycle.response_complete and not self.cycle.disconnected
        return not is_open and (self.transport is None or not self.transport.get_write_buffer_size())

    @property
    def waits_for_client(self) -> bool:
        """Whether the rest of a body has to come, or of an answer to be read."""
        return self._is_in_body or (self.transport is not None and self.transport.get_write_buffer_size() > 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's is
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)  # as without TLS, where it would be eight times as much
        super().connection_made(transport)
        if self.server_state.is_stopping:  # a handshake was under way; its request comes now
            self.loop.call_later(_LAST_REQUEST_SECONDS, self.close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.server_state.closed(self)


class HttpServer:
    """Call start, then stop, each once."""

    def __init__(
        self,
        app: ASGIApp,
        listeners: Sequence[socket.socket],
        *,
        on_refused: OnRefused | None = None,
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
        self._certificate = certificate
        self._on_refused = on_refused or (lambda error: None)
        self._count = count
        self._date = DateHeader()
        self._state = _State(max_connections, self._number_changed)
        self._config = Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,  # its Server would make it
            proxy_headers=False,
            timeout_keep_alive=keep_alive_timeout,
        )
        self._acceptors: list[Acceptor] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to accept connections."""
        self._config.load()
        self._number_changed(0)
        self._acceptors = [Acceptor(listener, self._accepted, count=self._count) for listener in self._listeners]

    def _accepted(self, connection: socket.socket) -> None:
        protocol = self._make_protocol()
        self._state.opened(protocol, connection)
        task = asyncio.get_running_loop().create_task(self._connect(protocol, connection))
        self._handshakes.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._handshakes.discard)

    async def _connect(self, protocol: _Protocol, connection: socket.socket) -> None:
        """Give the connection to the event loop, and wait for the TLS handshake where there is one."""
        tls: dict[str, Any] = {}
        if self._certificate is not None and connection.family != socket.AF_UNIX:
            tls = {
                "ssl": self._certificate.context,
                "ssl_handshake_timeout": _HANDSHAKE_SECONDS,
                "ssl_shutdown_timeout": _GOODBYE_SECONDS,
            }
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection, **tls)
        except OSError:  # no handshake, or not in time
            connection.close()
            self._state.closed(protocol)

    def _number_changed(self, number: int) -> None:
        if self._count is not None:
            self._count.set(number)
            for acceptor in self._acceptors:
                acceptor.reconsider()

    def _make_protocol(self) -> _Protocol:
        loop = asyncio.get_running_loop()
        protocol = _Protocol(config=self._config, server_state=self._state, app_state={}, _loop=loop)
        protocol.on_refused = self._on_refused
        protocol.date = self._date.now
        return protocol

    @property
    def num_connections(self) -> int:
        """Connections that are open now."""
        return len(self._state.connections)

    def drain(self) -> None:
        """Go on accepting; every connection is closed after its next answer, which says so (`connection: close`)."""
        self._state.is_draining = True
        for connection in self._connections():
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
        self._state.is_stopping = True
        deadline = time.monotonic() + seconds
        established = self._connections()
        await self._wait_empty(min(_LAST_REQUEST_SECONDS, seconds))
        for connection in established:
            connection.close_if_idle()
        await self._wait_empty(deadline - time.monotonic())
        for task in list(self._state.tasks):
            task.cancel(STOPPING)
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_LAST_ANSWER_SECONDS)
        for connection in self._connections():
            connection.transport.close()
        await self._wait_empty(_LAST_ANSWER_SECONDS)
        for connection in list(self._state.by_age):
            self._state.end(connection)

    async def _wait_empty(self, seconds: float) -> None:
        """Waits until all connections are closed, at most so long."""
        self._state.empty.clear()
        if self._state.by_age:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._state.empty.wait(), seconds)

    def _connections(self) -> list[_Protocol]:
        """The connections that are established."""
        return [cast(_Protocol, connection) for connection in self._state.connections]


class DateHeader:
    """The `date` header of all answers, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._header = (b"date", b"")

    def now(self) -> tuple[bytes, bytes]:
        """The header's name and value."""
        second = int(time.time())
        if second != self._second:
            self._second, self._header = second, (b"date", formatdate(second, usegmt=True).encode())
        return self._header


def _num_unread(transport: asyncio.Transport) -> int:
    """Bytes that the kernel has received for a connection and nobody has read."""
    counted = array.array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, counted)
    return counted[0]
