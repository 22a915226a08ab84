"""The addresses of a host. The system's look-up can't be ended, so a thread makes it, for all that wait meanwhile."""

import queue
import socket
import threading
from typing import Any

from embedline.client.transport.failure import Failure, Kind

Found = list[tuple[Any, ...]] | OSError  # as socket.getaddrinfo gives them
Waiting = queue.SimpleQueue[Found]  # whoever waits may be told to stop, even by the handler of a signal


class Lookup:
    """Of one host and port."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []  # for the look-up that is under way

    def begin(self, waiting: Waiting) -> None:
        """Have what is found put there: at once for a host that is an address. Raises Failure (NO_THREAD)."""
        try:
            waiting.put(self._look_up(socket.AI_NUMERICHOST))
            return
        except OSError:
            pass  # it is a name
        with self._lock:
            if not self._waiting:
                try:
                    threading.Thread(target=self._run, name="embedline look-up", daemon=True).start()
                except RuntimeError as error:
                    raise Failure(Kind.NO_THREAD, f"no look-up of the host's name: {error}") from error
            self._waiting.append(waiting)

    def _run(self) -> None:
        found: Found
        try:
            found = self._look_up(0)
        except (OSError, UnicodeError) as error:
            found = error if isinstance(error, OSError) else OSError(str(error))
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.put(found)

    def _look_up(self, flags: int) -> Found:
        return list(socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=flags))
