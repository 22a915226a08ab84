"""Standard error of all processes: a slow or closed reader blocks none of them.

The pipe is in the place of the supervisor's standard error, and every process that it starts inherits it. So what
libraries and a dying interpreter print goes the same way, in the order in which it was written. One thread reads
the pipe and never waits for anything else; a `LogWriter` writes, and may wait for the reader.
"""

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Callable
from typing import TextIO

from wire.process import LogWriter

_PIPE_BYTES = 1 << 20  # what processes may write while the supervisor is stopped; the most that anybody may ask for
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
        """Put standard error back, once all is written; a process that still runs, or no reader, costs `seconds`."""
        os.dup2(self.original, self._fd)
        self._thread.join(seconds)
        self._writer.close(seconds)

    def _run(self, read_end: int) -> None:
        rest = b""
        while data := os.read(read_end, 64 * 1024):
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
