"""A thread that writes lines to a descriptor, so that a reader who is slow or gone never blocks whoever has them.

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

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: SimpleQueue[list[bytes] | None] = SimpleQueue()
        # each number has one writer, so no lock is needed
        self._bytes_put = 0
        self._bytes_done = 0
        self._num_lost = 0
        self._num_lost_taken = 0
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    def put(self, lines: list[bytes]) -> bool:
        """Have lines written; False where too much waits already. Nothing is written once the reader has gone."""
        num_bytes = sum(map(len, lines))
        if self._is_broken or not lines:
            return True
        if self._bytes_put - self._bytes_done + num_bytes > _MAX_PENDING_BYTES:
            return False
        self._bytes_put += num_bytes
        self._queue.put(lines)
        return True

    def take_lost(self) -> int:
        """How many lines could not be written since the last call."""
        num_lost = self._num_lost - self._num_lost_taken
        self._num_lost_taken += num_lost
        return num_lost

    def close(self, seconds: float) -> None:
        """Return once everything is written, or after so long."""
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
            logger.warning("nobody reads the request log any more; it ends here")
        except OSError:  # a full disk may have room again
            self._num_lost += len(lines)


def _write_some(fd: int, data: memoryview) -> int:
    try:
        return os.write(fd, data)
    except BlockingIOError:  # whoever started us shares the descriptor, and made it so
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        poll.poll()
        return 0


def _chunks(lines: list[bytes]) -> list[list[bytes]]:
    """Lines in groups that a pipe takes whole, so that no two processes mix theirs."""
    chunks: list[list[bytes]] = []
    room = 0
    for line in lines:
        room -= len(line)
        if room < 0:
            chunks.append([])
            room = select.PIPE_BUF - len(line)
        chunks[-1].append(line)
    return chunks
