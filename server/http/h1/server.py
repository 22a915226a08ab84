"""An HTTP server on listening sockets that another process owns: it accepts, drains and stops.

Of uvicorn it uses the configuration. Uvicorn's own server polls ten times a second, handles the process's signals, and
never tells a handler that its client has left.
"""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from uvicorn import Config

from server.http.acceptor import Acceptor, ConnectionCount
from server.http.body import STOPPING, ASGIApp
from server.http.h1.protocol import LAST_REQUEST_SECONDS, Connections, HttpProtocol, OnRefused
from server.http.tls import Certificate

_HANDSHAKE_SECONDS = 10.0  # as long as a request's head may take
# For a client to read the rest of an answer and to say goodbye. One that keeps an idle connection does not even notice
# that it should, and must not hold up the end of the server.
_GOODBYE_SECONDS = 3.0
_LAST_ANSWER_SECONDS = 1.0  # for cancelled handlers to answer


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
        self._config = Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
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
        protocol = HttpProtocol(self._config, self._connections)
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
