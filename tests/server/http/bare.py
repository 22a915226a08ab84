"""A connection without a socket: bytes go straight into the protocol, and what it does can be counted."""

import asyncio
import socket
from typing import Any

from server.http.body import ASGIApp
from server.http.h1.protocol import HttpProtocol
from server.http.server import HttpServer
from server.requests.errors import RequestError


class Transport(asyncio.Transport):
    """Keeps what is written, or only its length while nobody reads."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.written = bytearray()
        self.num_unread = 0
        self.is_read = True  # whether the client reads
        self.is_paused = False
        self.has_ended = False
        self._is_closing = False
        self._is_lost = False
        self._max_unread = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        if self.is_read:
            self.written += data
            return
        self.num_unread += len(data)
        if self.num_unread > self._max_unread:
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.num_unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._max_unread = high or 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
        if not self.num_unread:
            self._lose()

    def abort(self) -> None:
        self._is_closing = True
        self.num_unread = 0
        self._lose()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


class Bare:
    """A server without a listener. Must be made inside a running event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self.refused: list[RequestError] = []
        self._listener = socket.socket()
        self.server = HttpServer(app, [self._listener], on_refused=self.refused.append)

    def connect(self) -> "Connected":
        """A new connection."""
        return Connected(self.server)

    def close(self) -> None:
        """Close what was never a listener."""
        self._listener.close()


class Connected:
    """One connection as its client sees it."""

    def __init__(self, server: HttpServer) -> None:
        self.protocol = HttpProtocol(server._app, server._connections, idle_seconds=server._idle_seconds)
        self.transport = Transport(self.protocol)
        self.protocol.connection_made(self.transport)

    @property
    def is_open(self) -> bool:
        """Whether the server still reads what comes as a part of requests."""
        return not self.transport.is_closing() and not self.transport.has_ended

    async def send(self, *pieces: bytes) -> None:
        """Each piece is what one read gave; the event loop turns in between."""
        for piece in pieces:
            if self.transport.is_closing():
                return
            if piece:
                self.protocol.data_received(piece)
            await turns()

    @property
    def num_kept(self) -> int:
        """Bytes that the protocol keeps and has not parsed."""
        return len(self.protocol._received) - self.protocol._num_parsed

    def statuses(self) -> list[int]:
        """Of all answers. Bodies have no line that looks like an answer's."""
        lines = bytes(self.transport.written).split(b"HTTP/1.1 ")[1:]
        return [int(line[:3]) for line in lines]


async def turns(num: int = 3) -> None:
    """Let handlers run."""
    for _ in range(num):
        await asyncio.sleep(0)
