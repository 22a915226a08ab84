"""How long a client may take to read an answer. Knows how much of it waits in the connection's buffer, and no HTTP."""

import asyncio

BYTES_PER_SECOND = 256 * 1024


class AnswerClock:
    """Aborts a connection after some seconds, and one more for each BYTES_PER_SECOND bytes that its client has read.

    It runs while the client reads more slowly than the server writes, and stands while the server has nothing to write:
    an answer may be written for hours, line by line. What is left of the seconds is kept, however often the client
    reads a piece.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        """Begins at once. Must be made inside a running event loop."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds  # left when it began to run
        self._timer: asyncio.TimerHandle | None = None  # while it runs
        self.written()

    def written(self) -> None:
        """More waits than the buffer should have: it runs."""
        self._num_unread = self._transport.get_write_buffer_size()
        if self._timer is None:
            self._ends = self._loop.time() + self._seconds
            self._timer = self._loop.call_at(self._ends, self._check)

    def stand(self) -> None:
        """The buffer has room again."""
        self.read()
        self._seconds = self._ends - self._loop.time()
        self.stop()

    def read(self) -> None:
        """The client has read some of it."""
        num_unread = self._transport.get_write_buffer_size()
        self._ends += max(0, self._num_unread - num_unread) / BYTES_PER_SECOND
        self._num_unread = num_unread

    def stop(self) -> None:
        """The answer has left, or the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self.read()
        if self._loop.time() < self._ends:
            self._timer = self._loop.call_at(self._ends, self._check)
        else:
            self._transport.abort()  # `close` would wait until the client has read all
