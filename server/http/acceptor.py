"""Accepts the connections of a listening socket, which other processes may accept from too.

The kernel wakes every process that waits at the socket, and the first one gets the connection. That alone gave one of
four frontends 57 of 64 connections, and another one none. So each says how many it has (`ConnectionCount`), and one
that has more than another waits for a moment: the others come first. If they are stuck or busy, it accepts after all.
docs/decisions/0016-connections.md compares this with a socket for each frontend (SO_REUSEPORT).
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from wire.page import Page

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
