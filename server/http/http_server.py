"""An HTTP server on a listening socket that another process owns.

Of uvicorn it uses the configuration and the protocol. Uvicorn's own Server polls ten times a second, handles the
process's signals, and never tells a handler that its client has left.
"""

import asyncio
import contextlib
import socket
import time
from typing import Any, cast

from uvicorn import Config
from uvicorn.server import ServerState

from server.http.answers import WRITE_BUFFER_BYTES
from server.http.body import ASGIApp
from server.http.connection.date_header import DateHeader
from server.http.protocol import OnRefused, Protocol
from server.http.tls import Certificate

_KEEP_ALIVE_SECONDS = 90  # longer than usual proxies wait, or they reuse a connection that is being closed
_HANDSHAKE_SECONDS = 10.0  # as long as a request's head may take
# For a client to read the rest of an answer and to say goodbye. One that keeps an idle connection does not even notice
# that it should, and must not hold up the end of the server.
_GOODBYE_SECONDS = 3.0
_LAST_ANSWER_SECONDS = 1.0  # for cancelled handlers to answer


class _State(ServerState):
    """Uvicorn's state, with the date of answers, and an event for the end of the last connection."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = asyncio.Event()
        self.default_headers = DateHeader()


class _Protocol(Protocol):
    """Sets the event when the last connection has closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's is
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)  # as without TLS, where it would be eight times as much
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.connections:
            cast(_State, self.server_state).empty.set()


class HttpServer:
    """Call start, then stop, each once."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        *,
        on_refused: OnRefused | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """`on_refused` gets the error of what never became a request: its head was too long, too slow or not HTTP.
        With a certificate the server speaks TLS."""
        self._listener = listener
        self._certificate = certificate
        self._on_refused = on_refused or (lambda error: None)
        self._state = _State()
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
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to accept connections."""
        self._config.load()
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            tls = {
                "ssl": self._certificate.context,
                "ssl_handshake_timeout": _HANDSHAKE_SECONDS,
                "ssl_shutdown_timeout": _GOODBYE_SECONDS,
            }
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_protocol, sock=self._listener, backlog=2048, **tls)

    def _make_protocol(self) -> _Protocol:
        loop = asyncio.get_running_loop()
        protocol = _Protocol(config=self._config, server_state=self._state, app_state={}, _loop=loop)
        protocol.on_refused = self._on_refused
        return protocol

    @property
    def num_connections(self) -> int:
        """Connections that are open now."""
        return len(self._state.connections)

    def stop_accepting(self) -> None:
        """Close the listener and every idle connection; those with an open request close after their answer."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def stop(self, seconds: float) -> None:
        """Wait at most `seconds` for open requests and for clients to read the answers, then close all connections."""
        self.stop_accepting()
        deadline = time.monotonic() + seconds
        if self._state.tasks:
            _, unfinished = await asyncio.wait(self._state.tasks, timeout=seconds)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished, timeout=_LAST_ANSWER_SECONDS)
        await self._close_connections(max(_LAST_ANSWER_SECONDS, deadline - time.monotonic()))

    async def _close_connections(self, seconds: float) -> None:
        """Give clients `seconds` to read what was written."""
        self._state.empty.clear()
        for connection in list(self._state.connections):
            connection.transport.close()
        if self._state.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._state.empty.wait(), seconds)
        for connection in list(self._state.connections):
            connection.transport.abort()
