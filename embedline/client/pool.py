"""The connections to one base URL, and those that wait for answers.

`ConnectionPool` keeps connections while they are idle, and has never more than a fixed number in use.
`DeadlineWatch` aborts those that wait: one by one at their deadlines, or all of one call at once.
"""

import contextlib
import ssl
import threading
import time

from embedline.client.base_url import Origin
from embedline.client.connection import HttpConnection, Lookup
from embedline.client.failure import Failure, Kind


class CallState:
    """One call of the client, as its connections know it."""

    is_aborted = False


class DeadlineWatch:
    """Owns the list of the connections that wait for answers.

    One thread watches the deadlines. It starts with the first and ends when it wakes and nothing is left to watch.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: dict[HttpConnection, tuple[float, CallState]] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

    def add(self, connection: HttpConnection, deadline: float, call: CallState) -> None:
        """Watch it until `remove`. `deadline`: time.monotonic() seconds. Raises Failure (ABORTED, NO_THREAD)."""
        with self._changed:
            if call.is_aborted:
                raise Failure(Kind.ABORTED, "the call is over")
            self._watched[connection] = (deadline, call)
            if self._thread is None:
                self._start()
            elif deadline < self._wakes_at:
                self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._watch, name="embedline deadlines", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise Failure(Kind.NO_THREAD, f"nothing watches its deadline: {error}") from error
        self._thread = thread

    def remove(self, connection: HttpConnection) -> None:
        with self._changed:
            self._watched.pop(connection, None)

    def abort(self, call: CallState) -> None:
        """Abort all connections of a call, and none is added after that."""
        with self._changed:
            call.is_aborted = True
            # under the lock: one that is given back meanwhile may serve another call
            for connection in [one for one, (_, its) in self._watched.items() if its is call]:
                connection.abort(Kind.ABORTED)

    def close(self) -> None:
        """Wake the thread, which ends if nothing is left to watch."""
        with self._changed:
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while self._watched:
                now = time.monotonic()
                for connection in [one for one, (deadline, _) in self._watched.items() if deadline <= now]:
                    del self._watched[connection]
                    connection.abort(Kind.TIMEOUT)
                self._wakes_at = min((deadline for deadline, _ in self._watched.values()), default=now)
                if self._watched:
                    self._changed.wait(self._wakes_at - now)
            self._thread = None
            self._wakes_at = float("inf")


class ConnectionPool:
    """Hands out connections, the one last used first."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, *, max_in_use: int) -> None:
        self._origin = origin
        self._tls = tls
        self._lookup = Lookup(origin.host, origin.port)
        self._num_free = max_in_use  # places for connections in use
        self._changed = threading.Condition()  # its lock may be taken again, by the handler of a signal that cancels
        self._idle: list[HttpConnection] = []
        self._is_closed = False

    def take(self, deadline: float, call: CallState, *, is_new: bool = False) -> HttpConnection:
        """A connection, once one more may be in use; not open if it is new. Raises Failure (NO_TURN, ABORTED).

        Who aborts the call calls `wake_all` then. `is_new`: close the idle connections and make a new one,
        because one was found to be bad.
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
        """Let all that wait look whether their call is aborted."""
        with self._changed:
            self._changed.notify_all()

    def try_take(self) -> HttpConnection | None:
        """Take one as `take` does, but None where there would be a wait."""
        with self._changed:
            if not self._num_free:
                return None
            self._num_free -= 1
        return self._idle_or_new()

    def _idle_or_new(self, *, is_new: bool = False) -> HttpConnection:
        while True:
            with self._changed:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return HttpConnection(self._origin, self._tls, self._lookup)
            if connection.is_idle and not is_new:
                return connection
            connection.close()

    def give_back(self, connection: HttpConnection, *, is_kept: bool) -> None:
        """Give back each one that was taken. It is closed unless the next request may follow on it."""
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
