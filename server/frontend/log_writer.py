"""A thread that writes lines to a descriptor, so that a slow or closed reader never blocks a request.

Knows nothing of what is in a line.
"""

import logging
import os
import select
import threading
from queue import SimpleQueue

_MAX_PENDING_BYTES = 8 * 1024 * 1024  # what may wait for a slow reader

logger = logging.getLogger("embedline.server")


class LogWriter:
    """A thread that may block on a descriptor. `put` and `take_lost` are for one other thread, and never block."""

    def __init__(self, fd: int, *, name: str) -> None:
        """`name` says whose lines these are."""
        self._fd = fd
        self._name = name
        self._queue: SimpleQueue[list[bytes] | None] = SimpleQueue()
        # each number has one writer, so no lock is needed
        self._bytes_put = 0
        self._bytes_done = 0
        self._num_lost = 0
        self._num_lost_taken = 0
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, lines: list[bytes]) -> bool:
        """Queue lines; False if too much waits already. After the reader has gone, nothing is written."""
        num_bytes = sum(map(len, lines))
        if self._is_broken or not lines:
            return True
        if self._bytes_put - self._bytes_done + num_bytes > _MAX_PENDING_BYTES:
            return False
        self._bytes_put += num_bytes
        self._queue.put(lines)
        return True

    def take_lost(self) -> int:
        """The number of lines that could not be written since the last call."""
        num_lost = self._num_lost - self._num_lost_taken
        self._num_lost_taken += num_lost
        return num_lost

    def close(self, seconds: float) -> None:
        """Return when everything is written, or after `seconds`."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (lines := self._queue.get()) is not None:
            for chunk in _chunks(lines):
                if not self._is_broken:
                    self._write(chunk)
                self._bytes_done += sum(map(len, chunk))

    def _write(self, lines: list[bytes]) -> None:
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                rest = rest[_write_some(self._fd, rest) :]
        except BrokenPipeError:
            self._is_broken = True
            logger.warning("the reader of the %s has closed it; no more lines are written", self._name)
        except OSError:  # a full disk may have room again
            self._num_lost += len(lines)


def _write_some(fd: int, data: memoryview) -> int:
    try:
        return os.write(fd, data)
    except BlockingIOError:  # the parent process shares the descriptor and made it non-blocking
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        poll.poll()
        return 0


def _chunks(lines: list[bytes]) -> list[list[bytes]]:
    """Lines in groups that a pipe takes whole, so that lines of two processes never mix."""
    chunks: list[list[bytes]] = []
    room = 0
    for line in lines:
        room -= len(line)
        if room < 0:
            chunks.append([])
            room = select.PIPE_BUF - len(line)
        chunks[-1].append(line)
    return chunks
