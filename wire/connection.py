"""Framed connections over Unix stream sockets: how a process sends frames to another and learns of its death.

`FrameConnection` is one end on the event loop, and `Link` makes it again whenever it is lost. A process of threads has
`wire.blocking`. None of them knows what the frames mean.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, cast

from wire import frames
from wire.frames import Buffer, FrameParser, ProtocolError

# A peer that leaves this much unread has stopped; what can pile up here is bounded by admission long before.
MAX_UNSENT_BYTES = 1 << 30
_RETRY_SECONDS = 0.05  # only where connecting itself is refused: a full backlog, or a supervisor going down

logger = logging.getLogger("embedline.wire")


class Connection(Protocol):
    """A peer that has connected, as the one sees it who serves it: over a socket or within this process."""

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame, of which the parts must not change until it has left. Raises PayloadTooLarge."""

    def close(self) -> None:
        """Close when all has left."""


class Peer(Protocol):
    """The one who serves, as a peer sees it that connects to it: `Link` over a socket, or within this process."""

    @property
    def is_up(self) -> bool:
        """Whether a connection is open."""
        ...

    def open(self) -> None:
        """Begin to connect."""

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame on the open connection; without one it is dropped. Raises PayloadTooLarge."""

    def close(self) -> None:
        """Close for good; `on_down` is not called any more."""

    @property
    def ask(self) -> Callable[[Any], Any] | None:
        """Has the one who serves answer at once, without frames, or not (None); None where it is another process."""


class Connect(Protocol):
    """Makes the `Peer` of one who serves, who need not run yet: `partial(Link, path)`, or `LocalService.link`."""

    def __call__(
        self,
        *,
        on_frame: Callable[[int, int, memoryview], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> Peer: ...


class OnConnectionFrame(Protocol):
    """Called with each whole frame of a connection."""

    def __call__(self, connection: "FrameConnection", kind: int, frame_id: int, payload: memoryview, /) -> None: ...


class FrameConnection(asyncio.BufferedProtocol):
    """One end of a Unix stream socket that carries frames.

    uvloop writes at the end of a tick all that was sent within it. A frame sent after the connection is lost is
    dropped: its sender learns of the loss through `on_lost`.
    """

    def __init__(
        self,
        on_frame: OnConnectionFrame,
        on_lost: Callable[["FrameConnection"], None],
        on_made: Callable[["FrameConnection"], None] = lambda _: None,
    ) -> None:
        """`on_made` is called before a frame can come over the connection or it can be lost."""
        self._on_made = on_made
        self._on_lost = on_lost
        self._parser = FrameParser(partial(on_frame, self))
        self._transport: asyncio.Transport | None = None
        self._has_drained = asyncio.Event()
        self._has_drained.set()

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame, of which the parts must not change until it has left. Raises PayloadTooLarge."""
        transport = self._transport
        if transport is None:
            return
        transport.writelines(frames.frame(kind, frame_id, parts))
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES and not transport.is_closing():
            logger.error("a peer stopped reading; its connection is cut")
            transport.abort()

    async def sent(self) -> None:
        """Return once all is in the socket, or the connection is lost."""
        while self._transport is not None and self._transport.get_write_buffer_size():  # noqa: ASYNC110 - nothing tells when it is 0
            await asyncio.sleep(0)

    async def drained(self) -> None:
        """Return once almost all is in the socket, or the connection is lost."""
        await self._has_drained.wait()

    def close(self) -> None:
        """Close when all is in the socket; `on_lost` follows."""
        if self._transport is not None:
            self._transport.close()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports don't inherit from it
        self._transport.writelines(frames.hello())
        self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._parser.advance(nbytes)
        except ProtocolError as error:
            logger.error("connection cut: %s", error)
            if self._transport is not None:
                self._transport.abort()

    def pause_writing(self) -> None:
        """The transport holds much."""
        self._has_drained.clear()

    def resume_writing(self) -> None:
        """The transport holds little."""
        self._has_drained.set()

    def eof_received(self) -> None:
        """Let the transport close itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._has_drained.set()
        self._on_lost(self)


async def serve(
    listener: socket.socket,
    on_frame: OnConnectionFrame,
    on_made: Callable[[FrameConnection], None],
    on_lost: Callable[[FrameConnection], None],
) -> asyncio.Server:
    """Accept framed connections on an inherited listening socket."""
    # the path belongs to the process that made the socket; Python 3.13 would remove it at the server's end
    keep_path: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
    loop = asyncio.get_running_loop()
    made = partial(FrameConnection, on_frame, on_lost, on_made)
    return await loop.create_unix_server(made, sock=listener, **keep_path)


class Link:
    """Keeps one connection to `path` open until closed.

    `on_up` is called after each connect (send again what the last peer held), `on_down` after each loss.
    Frames sent while it is down are dropped. The supervisor keeps every listening socket open, so connecting succeeds
    even while the server behind the path is down: it waits in the backlog until the restarted process accepts it.
    """

    ask: Callable[[Any], Any] | None = None

    def __init__(
        self,
        path: str,
        *,
        on_frame: Callable[[int, int, memoryview], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self._path = path
        self._on_frame = on_frame
        self._on_up = on_up
        self._on_down = on_down
        self._loop = asyncio.get_running_loop()
        self._connection: FrameConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_up(self) -> bool:
        """Whether a connection is open; its peer may still be waiting to accept it."""
        return self._connection is not None

    def open(self) -> None:
        """Begin to connect."""
        self._connecting = self._loop.create_task(self._connect())

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame on the open connection."""
        if self._connection is not None:
            self._connection.send(kind, frame_id, parts)

    def close(self) -> None:
        """Close for good; `on_down` is not called any more."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _connect(self) -> None:
        while not self._closed:
            try:
                made = partial(FrameConnection, self._received, self._lost, self._made)
                await self._loop.create_unix_connection(made, self._path)
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def _made(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._on_up()

    def _received(self, _: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        self._on_frame(kind, frame_id, payload)

    def _lost(self, _: FrameConnection) -> None:
        self._connection = None
        if not self._closed:
            self._on_down()
            self.open()
