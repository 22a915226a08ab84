"""A process by itself: its name, its signals, its end with the supervisor, its log, and what it is doing.

Every process of the server begins with this. What it is doing shows on SIGUSR1, before a fatal signal ends it, and
where an operator asks for its tasks.
"""

import contextlib
import ctypes
import faulthandler
import inspect
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Hashable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_MAX_PLACES = 20

# How control characters, and what a terminal or a reader of logs may take for the end of a line, are written.
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_ESCAPED |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_MAX_PENDING_BYTES = 8 * 1024 * 1024  # what may wait for a slow reader of a log
_MOST_A_SECOND = 100  # so that a storm of messages or of refusals costs little
_LEVELS = {"trace": logging.DEBUG}  # what logging has no name for

logger = logging.getLogger("embedline.server")


def settle(parent_pid: int) -> None:
    """Tie this process to the supervisor. Signals from a terminal or a service manager go to the whole
    group; only the supervisor acts on them, and tells its children through their control channel."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    dump_stacks_on_signal()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        print("embedline: the supervisor is gone, or started this process through another one", file=sys.stderr)
        os._exit(1)


def begin(title: str, log_level: str, *, json_output: bool = False) -> None:
    """Take the name from START and log under it to standard error, as text or JSON lines."""
    set_title(title)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(title, json_output=json_output))
    handler.addFilter(RateLimit())
    logging.basicConfig(level=_LEVELS.get(log_level, log_level.upper()), handlers=[handler])


class RateLimit(logging.Filter):
    """Lets at most 100 records of the same message pass in a second. The next one says how many were left out.

    What clients do may cause a line each time. What is logged for debugging passes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._num_passed: Counter[Hashable] = Counter()  # in that second, by kind
        self._num_left_out: Counter[Hashable] = Counter()  # since the last that passed

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it passes."""
        if record.levelno < logging.INFO:
            return True
        kind = str(record.msg)  # the message without its values
        num_left_out = self.admit(kind, record.created)
        if num_left_out:
            record.msg = f"{kind} ({num_left_out} more like this were left out)"
        return num_left_out is not None

    def admit(self, kind: Hashable, now: float) -> int | None:
        """Returns None if one more of a kind does not pass, else how many did not since the last. There must be few
        kinds, as none is forgotten."""
        if self._second != int(now):
            self._second = int(now)
            self._num_passed.clear()
        self._num_passed[kind] += 1
        if self._num_passed[kind] > _MOST_A_SECOND:
            self._num_left_out[kind] += 1
            return None
        return self._num_left_out.pop(kind, 0)


def formatter(process: str, *, json_output: bool) -> logging.Formatter:
    """How a process writes its records."""
    return JsonLines(process) if json_output else TextLines(process)


class TextLines(logging.Formatter):
    """`<time> <level> <process>: <message>`; a traceback follows in indented lines.

    No message can look like a second line, nor move a terminal's cursor, whatever name or reason is in it.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        message = record.getMessage().translate(_ESCAPED)
        lines = [f"{self.formatTime(record)} {record.levelname} {self._process}: {message}"]
        if record.exc_info:
            lines += [f"    {line.translate(_ESCAPED)}" for line in self.formatException(record.exc_info).split("\n")]
        return "\n".join(lines)


class JsonLines(logging.Formatter):
    """One object a record: ts, level, process, logger, message, and exception where there is one."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "ts": f"{second}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)  # in ASCII, so that every control character is escaped


class LogWriter:
    """Writes the lines of a log by a thread, which may block on the descriptor: a slow or closed reader blocks nothing
    else. `put` and `take_lost` are for one other thread, and never block."""

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
    if sum(map(len, lines)) <= select.PIPE_BUF:
        return [lines]
    chunks: list[list[bytes]] = []
    room = 0
    for line in lines:
        room -= len(line)
        if room < 0:
            chunks.append([])
            room = select.PIPE_BUF - len(line)
        chunks[-1].append(line)
    return chunks


def set_title(title: str) -> None:
    """Set what `ps` shows for this process."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title[:15].encode(), 0, 0, 0)
    # A role may run under an interpreter that has numpy alone.
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(f"embedline: {title}")


def dump_stacks_on_signal(*, fatal_fd: int = 2) -> None:
    """From now on SIGUSR1 writes the stacks of all threads to standard error, even while this process is stuck.

    So do SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT, to `fatal_fd`, and end it as ever.
    """
    faulthandler.enable(file=fatal_fd, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def waiting_tasks() -> dict[str, int]:
    """The places where tasks of the running loop wait, and how many in each; those with most of them."""
    import asyncio  # an engine process has no loop, and does without 3 MB

    return dict(Counter(map(_place, asyncio.all_tasks())).most_common(_MAX_PLACES))


def _place(task: "asyncio.Task[object]") -> str:
    coroutine = task.get_coro()
    while inspect.iscoroutine(coroutine) and inspect.iscoroutine(coroutine.cr_await):
        coroutine = coroutine.cr_await
    frame = coroutine.cr_frame if inspect.iscoroutine(coroutine) else None
    return "elsewhere" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
