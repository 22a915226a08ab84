"""Connections that wait for answers: aborted one by one at their deadlines, or all of one call at once.

One thread watches the deadlines. It starts with the first and ends when it wakes and nothing is left to watch.
"""

import threading
import time

from embedline.client.transport.connection import Connection
from embedline.client.transport.failure import Failure, Kind


class Call:
    """One call of the client, as its connections know it."""

    is_aborted = False


class InFlight:
    """Owns the list of these connections."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: dict[Connection, tuple[float, Call]] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

    def add(self, connection: Connection, deadline: float, call: Call) -> None:
        """Watch it until `remove`. `deadline`: time.monotonic() seconds. Raises Failure (ABORTED) if the
        call is over, and (NO_THREAD)."""
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

    def remove(self, connection: Connection) -> None:
        with self._changed:
            self._watched.pop(connection, None)

    def abort(self, call: Call) -> None:
        """All connections of a call, and none is added after that."""
        with self._changed:
            call.is_aborted = True
            # under the lock: one that is given back meanwhile may serve another call
            for connection in [one for one, (_, its) in self._watched.items() if its is call]:
                connection.abort(Kind.ABORTED)

    def close(self) -> None:
        """The thread ends as soon as nothing is left to watch."""
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
