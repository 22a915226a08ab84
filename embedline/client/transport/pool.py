"""The connections to one base URL: kept while idle, never more than a fixed number in use."""

import contextlib
import ssl
import threading
import time

from embedline.client.transport.base_url import Origin
from embedline.client.transport.connection import Connection
from embedline.client.transport.failure import Failure, Kind

_CONNECT_SECONDS = 10.0  # that one address may take to answer


class ConnectionPool:
    """Hands out connections, the one last used first."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, *, most: int) -> None:
        self._origin = origin
        self._tls = tls
        self._free = threading.BoundedSemaphore(most)  # places for connections in use
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False

    def take(self, deadline: float) -> Connection:
        """A connection, once fewer than the most are in use; not open if it is new. Raises Failure (TIMEOUT)."""
        if not self._free.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Failure(Kind.TIMEOUT, "all connections were in use")
        return self._idle_or_new()

    def try_take(self) -> Connection | None:
        """The same, but None where there would be a wait."""
        return self._idle_or_new() if self._free.acquire(blocking=False) else None

    def _idle_or_new(self) -> Connection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return Connection(self._origin, self._tls)
            if connection.is_idle:
                return connection
            connection.close()

    def give_back(self, connection: Connection, *, is_kept: bool) -> None:
        """For each one that was taken. It is closed unless the next request may follow on it."""
        with self._lock:
            is_kept = is_kept and not self._is_closed
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()
        self._free.release()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they come back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(OSError):
                connection.close()


def connect_seconds(deadline: float) -> float:
    """How long one address may take."""
    return max(0.001, min(_CONNECT_SECONDS, deadline - time.monotonic()))
