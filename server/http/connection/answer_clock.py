"""How long a client may take to read an answer. Knows how much of it waits in the connection's buffer, and no HTTP."""

import asyncio

BYTES_PER_SECOND = 256 * 1024


class AnswerClock:
    """Aborts a connection after some seconds, and one more for each BYTES_PER_SECOND bytes that its client has read.

    It begins when the client reads more slowly than the server writes, and goes on until the answer has left, however
    often the client reads a piece of it.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        """Begins at once. Must be made inside a running event loop."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + seconds
        self._num_unread = transport.get_write_buffer_size()
        self._timer = self._loop.call_at(self._ends, self._check)

    def written(self) -> None:
        """Another piece waits."""
        self._num_unread = self._transport.get_write_buffer_size()

    def read(self) -> None:
        """The client has read some of it."""
        num_unread = self._transport.get_write_buffer_size()
        self._ends += max(0, self._num_unread - num_unread) / BYTES_PER_SECOND
        self._num_unread = num_unread

    def stop(self) -> None:
        """The answer has left, or the connection is lost."""
        self._timer.cancel()

    def _check(self) -> None:
        self.read()
        if self._loop.time() < self._ends:
            self._timer = self._loop.call_at(self._ends, self._check)
        else:
            self._transport.abort()  # `close` would wait until the client has read all
