"""The report of every finished request: metrics, and a line of JSON in the log, which makes no request wait.

A thread writes the lines, so that a slow or closed reader blocks neither a request nor a process.

Knows no text, only what a Trace has. docs/decisions/0010-request-log.md says what the log costs.
"""

import asyncio
import enum
import logging
import os
import random
import select
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from queue import SimpleQueue

import msgspec

from server.http.access import HEALTH_PATHS, METRICS_PATHS
from server.requests.work import CLIENT_LEFT, Trace
from wire.metrics import POWERS, Recorder

_MAX_PENDING_BYTES = 8 * 1024 * 1024  # what may wait for a slow reader
_FLUSH_SECONDS = 0.1
_FLUSH_BYTES = 64 * 1024
_FAILURES_A_SECOND = 100  # lines for one status and reason, so that a storm of refusals costs little
_POLLED = HEALTH_PATHS | METRICS_PATHS  # logged only when they fail
_REASONS_BY_STATUS = {404: "route"}  # of an answer without one of our errors: the readiness of an unknown model
_STAGE_SECONDS = "embedline_stage_duration_seconds"
logger = logging.getLogger("embedline.server")


class Logged(enum.StrEnum):
    """Chooses the requests that get a line."""

    ALL = "all"
    ERRORS = "errors"  # status 400 and above
    OFF = "off"


class _Line(msgspec.Struct, gc=False, omit_defaults=True, rename={"request_class": "class"}):
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
    reason: str = ""  # of an error, as embedline_rejected_total has it
    left_out: int = 0  # lines of failed requests like this one, since the last that was written
    joined: bool = False
    param: str = ""  # of an error: what is wrong, as we name it
    problem: str = ""  # a code for what is wrong with it


@dataclass(slots=True)
class _Kind:
    """Failed requests of one status and reason."""

    second: int = 0
    num_lines: int = 0  # in that second
    num_left_out: int = 0  # since the last line


class _Failures:
    """Chooses the failed requests that get a line. There are as many kinds as reasons, so they are never forgotten."""

    def __init__(self) -> None:
        self._kinds: defaultdict[tuple[int, str], _Kind] = defaultdict(_Kind)

    def admit(self, name: tuple[int, str]) -> int | None:
        """Returns None if this request gets no line, else how many got none since the last."""
        kind, second = self._kinds[name], int(time.monotonic())
        if second != kind.second:
            kind.second, kind.num_lines = second, 0
        if kind.num_lines >= _FAILURES_A_SECOND:
            kind.num_left_out += 1
            return None
        kind.num_lines += 1
        num_left_out, kind.num_left_out = kind.num_left_out, 0
        return num_left_out


class RequestLog:
    """Collects lines for a thread that writes them. Lines that the reader is too slow for are dropped and counted.

    `write` and `close` are for the event loop that was running when it was made.
    """

    def __init__(self, logged: Logged, metrics: Recorder, *, sample_rate: float = 1.0, fd: int = 1) -> None:
        """`sample_rate` is the share of answered requests that get a line."""
        self._sample_rate = sample_rate
        self._failures = _Failures()
        self._least_status = {Logged.ALL: 0, Logged.ERRORS: 400, Logged.OFF: 1000}[logged]
        self._recorder = metrics
        self._metrics = RequestMetrics(metrics)
        self._loop = asyncio.get_running_loop()
        self._encoder = msgspec.json.Encoder()
        self._second, self._second_text = 0, ""
        self._lines: list[bytes] = []
        self._num_bytes = 0  # of `_lines`
        self._flush_is_due = False
        self._num_dropped = 0
        self._writer = LogWriter(fd, name="request log")

    def report(self, trace: Trace) -> None:
        """A request has been answered, or its client has left: count it, and write its line."""
        self._metrics.record(trace)
        self.write(trace)

    def write(self, trace: Trace) -> None:
        """Add a line for a finished request."""
        if trace.status < self._least_status or (trace.status == 200 and trace.route in _POLLED):
            return
        left_out = self._num_left_out(trace)
        if left_out is None:
            return
        line = self._encoder.encode(self._line(trace, left_out)) + b"\n"
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

    def _num_left_out(self, trace: Trace) -> int | None:
        """The number that the line's `left_out` says; None if there is to be no line."""
        if trace.status >= 400:
            return self._failures.admit((trace.status, trace.reason))
        return 0 if self._sample_rate == 1 or random.random() < self._sample_rate else None

    def _line(self, trace: Trace, left_out: int) -> _Line:
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
            trace.reason,
            left_out,
            trace.has_joined,
            trace.param,
            trace.problem,
        )

    def _now(self) -> str:
        """The time by RFC 3339 in UTC. All but the milliseconds is made once a second, because it is the slowest
        part."""
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
        self._recorder.count("embedline_log_lines_dropped_total", by=num_lines)
        if not self._num_dropped:
            logger.warning("the request log can't be written fast enough, or at all: lines are dropped and counted")
        self._num_dropped += num_lines


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


class RequestMetrics:
    """The request metrics of one frontend."""

    def __init__(self, metrics: Recorder) -> None:
        self._metrics = metrics

    def record(self, trace: Trace) -> None:
        """A request has been answered, or its client has left."""
        metrics, status = self._metrics, trace.status
        is_answered = status == 200 and trace.num_items > 0
        metrics.count("embedline_requests_total", trace.route, trace.request_class or "none", str(status))
        metrics.observe("embedline_request_duration_seconds", trace.route, value=trace.total_seconds)
        if trace.num_body_bytes:
            metrics.count("embedline_request_bytes_total", by=trace.num_body_bytes)
        if trace.num_bytes:
            encoding = (is_answered and trace.encoding) or "other"
            metrics.count("embedline_response_bytes_total", encoding, by=trace.num_bytes)
        if trace.num_items:
            metrics.count("te_requests", "single" if trace.is_single else "batch", "ok" if status == 200 else "error")
        self._stages(trace)
        if is_answered:
            self._answered(trace)
        elif status >= 400:
            self._failed(trace)

    def _stages(self, trace: Trace) -> None:
        observe = self._metrics.observe
        if trace.read_seconds:
            observe(_STAGE_SECONDS, "read", value=trace.read_seconds)
        if trace.tokenize_seconds:
            observe(_STAGE_SECONDS, "tokenize", value=trace.tokenize_seconds)
        if trace.compute_seconds:
            observe(_STAGE_SECONDS, "queue", value=trace.queue_seconds)
            observe(_STAGE_SECONDS, "compute", value=trace.compute_seconds)
        if trace.respond_seconds:
            observe(_STAGE_SECONDS, "respond", value=trace.respond_seconds)

    def _answered(self, trace: Trace) -> None:
        metrics, model = self._metrics, trace.model
        metrics.count("embedline_inputs_total", model, by=trace.num_items)
        metrics.count("embedline_input_tokens_total", model, by=trace.num_tokens)
        metrics.observe_each("embedline_input_length_tokens", model, values=trace.seqlens, edges=POWERS)
        task = "predict" if trace.is_prediction else "embed"
        metrics.count("te_inputs", task, by=trace.num_items)
        metrics.observe("te_duration", task, value=trace.total_seconds)
        if trace.num_truncated:
            metrics.count("embedline_truncated_inputs_total", model, by=trace.num_truncated)

    def _failed(self, trace: Trace) -> None:
        if trace.status == CLIENT_LEFT:
            self._metrics.count("embedline_cancelled_total", trace.stage)
            return
        reason = trace.reason or _REASONS_BY_STATUS.get(trace.status)
        if reason is not None:  # None: a health route that says "not ready"
            self._metrics.count("embedline_rejected_total", reason)
