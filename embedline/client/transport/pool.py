"""The connections to one base URL: kept while idle, never more than a fixed number in use."""

import contextlib
import ssl
import threading
import time

from embedline.client.transport.base_url import Origin
from embedline.client.transport.connection import Connection
from embedline.client.transport.failure import Failure, Kind
from embedline.client.transport.in_flight import Call
from embedline.client.transport.lookup import Lookup

_CONNECT_SECONDS = 10.0  # that one address may take to answer


class ConnectionPool:
    """Hands out connections, the one last used first."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, *, most: int) -> None:
        self._origin = origin
        self._tls = tls
        self._lookup = Lookup(origin.host, origin.port)
        self._num_free = most  # places for connections in use
        self._changed = threading.Condition()  # its lock may be taken again, by the handler of a signal that cancels
        self._idle: list[Connection] = []
        self._is_closed = False

    def take(self, deadline: float, call: Call, *, is_new: bool = False) -> Connection:
        """A connection, once fewer than the most are in use; not open if it is new. Raises Failure (NO_TURN, ABORTED).

        Who aborts the call calls `wake_all` then. `is_new`: the kept ones are closed, for one was found to be bad.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._num_free or call.is_aborted, max(0.0, deadline - time.monotonic()))
            if call.is_aborted:
                self._changed.notify()  # the place for which it was woken, if that was why, is for another
                raise Failure(Kind.ABORTED, "the call is over")
            if not self._num_free:
                raise Failure(Kind.NO_TURN, "all connections were in use")
            self._num_free -= 1
        return self._idle_or_new(is_new=is_new)

    def wake_all(self) -> None:
        """All that wait look whether their call is aborted."""
        with self._changed:
            self._changed.notify_all()

    def try_take(self) -> Connection | None:
        """The same, but None where there would be a wait."""
        with self._changed:
            if not self._num_free:
                return None
            self._num_free -= 1
        return self._idle_or_new()

    def _idle_or_new(self, *, is_new: bool = False) -> Connection:
        while True:
            with self._changed:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return Connection(self._origin, self._tls, self._lookup)
            if connection.is_idle and not is_new:
                return connection
            connection.close()

    def give_back(self, connection: Connection, *, is_kept: bool) -> None:
        """For each one that was taken. It is closed unless the next request may follow on it."""
        with self._changed:
            is_kept = is_kept and not self._is_closed
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()
        with self._changed:
            self._num_free += 1
            self._changed.notify()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they come back."""
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(OSError):
                connection.close()


def connect_seconds(deadline: float) -> float:
    """How long one address may take."""
    return max(0.001, min(_CONNECT_SECONDS, deadline - time.monotonic()))
