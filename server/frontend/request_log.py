"""One line of JSON for each request on standard output, which never makes a request wait.

Knows no text, only what a Trace has. docs/decisions/0010-request-log.md says what it costs.
"""

import asyncio
import enum
import logging
import time

import msgspec

from server.frontend.log_writer import LogWriter
from server.http.auth import HEALTH_PATHS
from server.requests.trace import Trace
from wire.metrics import Recorder

_FLUSH_SECONDS = 0.1
_FLUSH_BYTES = 64 * 1024
_POLLED = HEALTH_PATHS | {"/metrics"}  # logged only when they fail

logger = logging.getLogger("embedline.server")


class Logged(enum.StrEnum):
    """Which requests get a line."""

    ALL = "all"
    ERRORS = "errors"  # status 400 and above
    OFF = "off"


class _Line(msgspec.Struct, gc=False, rename={"request_class": "class"}):
    ts: str
    level: str
    request_id: str
    key: str
    method: str
    route: str
    status: int
    error: str
    stage: str
    model: str
    request_class: str
    items: int
    characters: int
    tokens: int
    truncated: int
    encoding: str
    bytes: int
    read_ms: float
    tokenize_ms: float
    queue_ms: float
    compute_ms: float
    respond_ms: float
    total_ms: float


class RequestLog:
    """Collects lines for a thread that writes them. Lines that the reader is too slow for are dropped and counted.

    `write` and `close` are for the event loop that was running when it was made.
    """

    def __init__(self, logged: Logged, metrics: Recorder, *, fd: int = 1) -> None:
        self._least_status = {Logged.ALL: 0, Logged.ERRORS: 400, Logged.OFF: 1000}[logged]
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._encoder = msgspec.json.Encoder()
        self._second, self._second_text = 0, ""
        self._lines: list[bytes] = []
        self._num_bytes = 0  # of `_lines`
        self._flush_is_due = False
        self._num_dropped = 0
        self._writer = LogWriter(fd)

    def write(self, trace: Trace) -> None:
        """Add a line for a finished request."""
        if trace.status < self._least_status or (trace.status == 200 and trace.route in _POLLED):
            return
        line = self._encoder.encode(self._line(trace)) + b"\n"
        self._lines.append(line)
        self._num_bytes += len(line)
        if self._num_bytes >= _FLUSH_BYTES:
            self._flush()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_later(_FLUSH_SECONDS, self._flush)

    async def close(self, seconds: float = 2.0) -> None:
        """Write what is left, for at most `seconds`."""
        self._flush()
        await asyncio.to_thread(self._writer.close, seconds)
        self._count_dropped(0)

    def _line(self, trace: Trace) -> _Line:
        return _Line(
            self._now(),
            "info" if trace.status < 400 else "warning" if trace.status < 500 else "error",
            trace.request_id,
            trace.key,
            trace.method,
            trace.route,
            trace.status,
            trace.error,
            trace.stage,
            trace.model,
            trace.request_class,
            trace.num_items,
            trace.num_characters,
            trace.num_tokens,
            trace.num_truncated,
            trace.encoding,
            trace.num_bytes,
            round(1000 * trace.read_seconds, 3),
            round(1000 * trace.tokenize_seconds, 3),
            round(1000 * trace.queue_seconds, 3),
            round(1000 * trace.compute_seconds, 3),
            round(1000 * trace.respond_seconds, 3),
            round(1000 * trace.total_seconds, 3),
        )

    def _now(self) -> str:
        """RFC 3339 in UTC. All but the milliseconds is made once a second, because it is the slowest part."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._second_text = second, time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        return f"{self._second_text}{int((now - second) * 1000):03d}Z"

    def _flush(self) -> None:
        self._flush_is_due = False
        lines, self._lines, self._num_bytes = self._lines, [], 0
        self._count_dropped(0 if self._writer.put(lines) else len(lines))

    def _count_dropped(self, num_lines: int) -> None:
        num_lines += self._writer.take_lost()
        if not num_lines:
            return
        self._metrics.count("embedline_log_lines_dropped_total", by=num_lines)
        if not self._num_dropped:
            logger.warning("the request log can't be written fast enough, or at all: lines are dropped and counted")
        self._num_dropped += num_lines
