"""Uvicorn's HTTP parser on a listening socket that somebody else owns.

Uvicorn's own Server polls ten times a second, takes the process's signals and never tells a handler
that its client has left; of uvicorn we use the configuration and the protocol.
"""

import asyncio
import contextlib
import logging
import socket
import time
from typing import Any, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.asgi import App

_KEEP_ALIVE_SECONDS = 90  # longer than the proxies in front, or they reuse a connection that is being closed
_LAST_WORDS_SECONDS = 1.0  # what cancelled handlers get to say so

logger = logging.getLogger("embedline.server")


class _State(ServerState):
    """Uvicorn's, with an event for the last connection's end."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = asyncio.Event()


class _Protocol(HttpToolsProtocol):
    """Cancels a request's task when its client leaves, and declines upgrades.

    The parser takes what follows an upgrade's head for another protocol, but a client may offer one and send
    a usual body, as Java's does with `Upgrade: h2c`. Such a request is read again without the offer.
    """

    _task: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _decline(self, rest: bytes) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("This is no proxy.")
            return
        start = b"%b %b HTTP/%b\r\n" % (method, self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.data_received(b"".join([start, *headers, b"\r\n", rest]))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # a reference is kept in `tasks`, as uvicorn does: the loop holds tasks weakly
        self._task = self.loop.create_task(_run(cycle, app))
        self._task.add_done_callback(self.tasks.discard)
        self.tasks.add(self._task)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._task is not None and not self._task.done():
            self._task.cancel()
        if not self.connections:
            cast(_State, self.server_state).empty.set()


async def _run(cycle: RequestResponseCycle, app: Any) -> None:
    """One request. Uvicorn's own `run_asgi` takes a cancelled handler for a failed one."""
    try:
        await app(cycle.scope, cycle.receive, cycle.send)
    except Exception:
        logger.exception("a handler failed")
    finally:
        if not cycle.response_complete:
            cycle.transport.close()  # nobody is left waiting for an answer
        cycle.on_response = lambda: None  # breaks a cycle of references, as uvicorn does


class HttpServer:
    """start, then stop: in that order, once."""

    def __init__(self, app: App, listener: socket.socket) -> None:
        self._listener = listener
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
        self._server = await loop.create_server(
            lambda: _Protocol(config=self._config, server_state=self._state, app_state={}, _loop=loop),
            sock=self._listener,
            backlog=2048,
        )

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
