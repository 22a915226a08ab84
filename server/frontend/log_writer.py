"""Writes the log so that a slow or closed reader blocks neither a request nor a process. Knows nothing of its lines.

`LogWriter` is a thread that writes lines to a descriptor. `StderrRelay` takes the log of all processes through a pipe:
the supervisor puts the pipe in the place of its standard error, and every process that it starts inherits it. So what
libraries and a dying interpreter print goes the same way, in the order in which it was written. One thread reads the
pipe and never waits for anything else; a `LogWriter` writes, and may wait for the reader.
"""

import contextlib
import fcntl
import logging
import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TextIO

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


_PIPE_BYTES = 1 << 20  # what processes may write while the supervisor is stopped; the most that anybody may ask for
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024  # more is cut, so that what never ends a line does not pile up


class StderrRelay:
    """Passes on standard error by a thread. Begins at once.

    on_dropped  called by its thread with the number of lines that found no room
    original    a descriptor of what standard error was before
    """

    def __init__(self, formatter: logging.Formatter, *, fd: int = 2) -> None:
        """`formatter` writes the line that stands for lines that were dropped."""
        self.on_dropped: Callable[[int], object] = lambda num_lines: None
        self._formatter = formatter
        self._fd = fd
        self.original = os.dup(fd)
        self._num_missing = 0  # lines that were dropped since the last one that was kept
        self._writer = LogWriter(self.original, name="log")
        read_end, write_end = os.pipe()
        with contextlib.suppress(OSError):  # a machine may allow less
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.dup2(write_end, fd)
        os.close(write_end)
        self._thread = threading.Thread(target=self._run, args=(read_end,), name="log relay", daemon=True)
        self._thread.start()

    def terminal(self) -> TextIO | None:
        """A file of its own to write to where standard error was before, if that is a terminal: for a bar that is drawn
        again and again. It may wait for the reader."""
        return os.fdopen(os.dup(self.original), "w") if os.isatty(self.original) else None

    def close(self, seconds: float = 2.0) -> None:
        """Put standard error back. Returns when all was written; a process that still runs, or no reader, costs
        `seconds`."""
        os.dup2(self.original, self._fd)
        self._thread.join(seconds)
        self._writer.close(seconds)

    def _run(self, read_end: int) -> None:
        rest = b""
        while data := os.read(read_end, _READ_BYTES):
            lines = (rest + data).splitlines(keepends=True)
            is_cut = not lines[-1].endswith(b"\n") and len(lines[-1]) < _MAX_LINE_BYTES
            rest = lines.pop() if is_cut else b""
            self._pass_on(lines)
        self._pass_on([rest] if rest else [])
        os.close(read_end)

    def _pass_on(self, lines: list[bytes]) -> None:
        if num_lost := self._writer.take_lost():  # a full disk
            self._missed(num_lost)
        notice = [self._notice()] if self._num_missing else []
        if self._writer.put([*notice, *lines]):
            self._num_missing = 0
        else:
            self._missed(len(lines))

    def _missed(self, num_lines: int) -> None:
        self._num_missing += num_lines
        with contextlib.suppress(RuntimeError):  # the supervisor's loop has ended meanwhile
            self.on_dropped(num_lines)

    def _notice(self) -> bytes:
        """A notice made by hand: to log it would be to write into the pipe that this thread reads."""
        message = (
            f"{self._num_missing} lines are missing here: standard error could not be written fast enough, or at all"
        )
        record = logging.LogRecord("embedline.supervisor", logging.WARNING, __file__, 0, message, (), None)
        return self._formatter.format(record).encode() + b"\n"
