"""An HTTP server on a listening socket that somebody else owns.

Uvicorn's own Server polls ten times a second, takes the process's signals and never tells a handler
that its client has left; of uvicorn we use the configuration and the protocol.
"""

import asyncio
import contextlib
import socket
import time
from typing import cast

from uvicorn import Config
from uvicorn.server import ServerState

from server.http.body import App
from server.http.protocol import OnRefused, Protocol
from server.requests.errors import RequestError

_KEEP_ALIVE_SECONDS = 90  # longer than the proxies in front, or they reuse a connection that is being closed
_LAST_WORDS_SECONDS = 1.0  # what cancelled handlers get to say so


class _State(ServerState):
    """Uvicorn's, with an event for the last connection's end."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = asyncio.Event()


class _Protocol(Protocol):
    """Tells when the last connection is gone."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.connections:
            cast(_State, self.server_state).empty.set()


class HttpServer:
    """start, then stop: in that order, once."""

    def __init__(self, app: App, listener: socket.socket, *, on_refused: OnRefused | None = None) -> None:
        """`on_refused` hears of what never became a request, because its head was too long, too slow or no HTTP."""
        self._listener = listener
        self._on_refused = on_refused or _ignore
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
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to accept."""
        self._config.load()
        loop = asyncio.get_running_loop()

        def make_protocol() -> _Protocol:
            protocol = _Protocol(config=self._config, server_state=self._state, app_state={}, _loop=loop)
            protocol.on_refused = self._on_refused
            return protocol

        self._server = await loop.create_server(make_protocol, sock=self._listener, backlog=2048)

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
        """Wait at most so long for open requests and for their answers to be read, then end what is left."""
        self.stop_accepting()
        deadline = time.monotonic() + seconds
        if self._state.tasks:
            _, unfinished = await asyncio.wait(self._state.tasks, timeout=seconds)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished, timeout=_LAST_WORDS_SECONDS)
        await self._close_connections(max(_LAST_WORDS_SECONDS, deadline - time.monotonic()))

    async def _close_connections(self, seconds: float) -> None:
        """What was written leaves first, as far as the client reads it in time."""
        self._state.empty.clear()
        for connection in list(self._state.connections):
            connection.transport.close()
        if self._state.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._state.empty.wait(), seconds)
        for connection in list(self._state.connections):
            connection.transport.abort()


def _ignore(_: RequestError) -> None:
    """Where nobody takes note."""
