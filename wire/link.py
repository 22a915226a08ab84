"""A connection that is made again when it is lost: how a process keeps hold of a server that may be restarted.

The supervisor keeps every listening socket open, so connecting succeeds even while the server
behind the path is down: the connection waits in the backlog until the restarted process accepts it.
"""

import asyncio
from collections.abc import Callable, Sequence

from wire.connection import Connection
from wire.frames import Buffer

_RETRY_SECONDS = 0.05  # only where connecting itself is refused: a full backlog, or a supervisor going down


class Link:
    """Keeps one connection to `path` open until closed.

    `on_up` is called after each connect (send again what the last peer held), `on_down` after each loss.
    Frames sent while it is down are dropped.
    """

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
        self._connection: Connection | None = None
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
                await self._loop.create_unix_connection(lambda: _Linked(self), self._path)
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def made(self, connection: Connection) -> None:
        """The connection is open: noted before a frame can come over it or it can be lost."""
        self._connection = connection
        self._on_up()

    def received(self, _: Connection, kind: int, frame_id: int, payload: memoryview) -> None:
        """A frame came."""
        self._on_frame(kind, frame_id, payload)

    def lost(self, _: Connection) -> None:
        """The connection is gone."""
        self._connection = None
        if not self._closed:
            self._on_down()
            self.open()


class _Linked(Connection):
    """A connection that tells its link of itself."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.received, link.lost)
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link.made(self)
