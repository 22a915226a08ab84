"""A framed connection on the event loop: parses what comes, coalesces what goes, notices the peer's death.

Knows nothing of what the frames mean and never reconnects; `wire.link` does that.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from wire import frames
from wire.frames import Buffer, FrameParser, ProtocolError

# A peer that leaves this much unread has stopped; what can pile up here is bounded by admission long before.
MAX_UNSENT_BYTES = 1 << 30

logger = logging.getLogger("embedline.wire")


class OnConnectionFrame(Protocol):
    """Called with each whole frame of a connection."""

    def __call__(self, connection: "Connection", kind: int, frame_id: int, payload: memoryview, /) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """One end of a Unix stream socket that carries frames.

    Everything sent within one tick of the event loop leaves in one `writelines`. A frame sent after
    the connection is lost is dropped: its sender learns of the loss through `on_lost`.
    """

    def __init__(self, on_frame: OnConnectionFrame, on_lost: Callable[["Connection"], None]) -> None:
        self._on_lost = on_lost
        self._parser = FrameParser(lambda kind, frame_id, payload: on_frame(self, kind, frame_id, payload))
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Buffer] = []
        self._has_drained = asyncio.Event()
        self._has_drained.set()
        self._loop = asyncio.get_running_loop()

    @property
    def is_open(self) -> bool:
        """Whether frames sent now have a chance to arrive."""
        return self._transport is not None

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame; it leaves at the end of this tick. The parts must not change until then.

        Raises PayloadTooLarge.
        """
        if self._transport is None:
            return
        buffers = frames.frame(kind, frame_id, parts)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += buffers

    async def sent(self) -> None:
        """Return once all is in the socket, or the connection is lost."""
        self._flush()
        while self._transport is not None and self._transport.get_write_buffer_size():  # noqa: ASYNC110 - nothing tells when it is 0
            await asyncio.sleep(0)

    async def drained(self) -> None:
        """Return once almost all is in the socket, or the connection is lost."""
        self._flush()
        await self._has_drained.wait()

    def close(self) -> None:
        """Flush and close; `on_lost` follows."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        if not self._unsent or self._transport is None:
            return
        unsent, self._unsent = self._unsent, []
        self._transport.writelines(unsent)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            logger.error("a peer stopped reading; its connection is cut")
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports don't inherit from it
        self._transport.writelines(frames.hello())

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
        """It holds little."""
        self._has_drained.set()

    def eof_received(self) -> None:
        """Let the transport close itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unsent = []
        self._has_drained.set()
        self._on_lost(self)


async def serve(
    listener: socket.socket,
    on_frame: OnConnectionFrame,
    on_made: Callable[[Connection], None],
    on_lost: Callable[[Connection], None],
) -> asyncio.Server:
    """Accept framed connections on an inherited listening socket."""

    class Accepted(Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            on_made(self)

    # the path belongs to the process that made the socket; Python 3.13 would remove it at the server's end
    keep_path: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: Accepted(on_frame, on_lost), sock=listener, **keep_path)
