"""The report of every finished request: metrics, and a line of JSON in the log, which makes no request wait.

A thread writes the lines, so that a slow or closed reader blocks neither a request nor a process.

Knows no text, only what a Trace has. docs/decisions/0010-request-log.md says what the log costs.
"""

import asyncio
import enum
import logging
import random
import time
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec

from server.http.access import HEALTH_PATHS, METRICS_PATHS
from server.requests.work import CLIENT_LEFT, Trace
from wire.metrics import POWERS, Recorder
from wire.process import LogWriter, RateLimit

_FLUSH_SECONDS = 0.1
_FLUSH_BYTES = 64 * 1024
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
    lora: str = ""  # the adapter of `model`
    reason: str = ""  # of an error, as embedline_rejected_total has it
    left_out: int = 0  # lines of failed requests like this one, since the last that was written
    joined: bool = False
    param: str = ""  # of an error: what is wrong, as we name it
    problem: str = ""  # a code for what is wrong with it


# in the order of the line's fields
_facts_of = attrgetter(
    *("request_id", "key", "method", "route", "status", "error", "stage", "model", "request_class"),
    *("num_items", "num_characters", "num_tokens", "num_truncated", "encoding", "num_bytes"),
)
_times_of = attrgetter(*(f"{stage}_seconds" for stage in ("read", "tokenize", "queue", "compute", "respond", "total")))


class RequestLog:
    """Collects lines for a thread that writes them. Lines that the reader is too slow for are dropped and counted.

    `write` and `close` are for the event loop that was running when it was made.
    """

    def __init__(self, logged: Logged, metrics: Recorder, *, sample_rate: float = 1.0, fd: int = 1) -> None:
        """`sample_rate` is the share of answered requests that get a line."""
        self._sample_rate = sample_rate
        self._failures = RateLimit()  # of one status and reason
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
            return self._failures.admit((trace.status, trace.reason), time.monotonic())
        return 0 if self._sample_rate == 1 or random.random() < self._sample_rate else None

    def _line(self, trace: Trace, left_out: int) -> _Line:
        level = "info" if trace.status < 400 else "warning" if trace.status < 500 else "error"
        # to round to an integer costs a quarter of what it does to three decimals
        times = [round(1e6 * seconds) / 1000 for seconds in _times_of(trace)]
        more = trace.lora, trace.reason, left_out, trace.has_joined, trace.param, trace.problem
        values: list[Any] = [self._now(), level, *_facts_of(trace), *times, *more]
        return _Line(*values)

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


class RequestMetrics:
    """The request metrics of one frontend."""

    def __init__(self, metrics: Recorder) -> None:
        # every request asks for about twelve of them, so they are found in C
        self._counter, self._histogram = cache(metrics.counter), cache(metrics.histogram)
        self._body_bytes = metrics.counter("embedline_request_bytes_total")
        stages = ("read", "tokenize", "queue", "compute", "respond")
        self._stages = tuple(metrics.histogram(_STAGE_SECONDS, stage) for stage in stages)

    def record(self, trace: Trace) -> None:
        """A request has been answered, or its client has left."""
        counter, status = self._counter, trace.status
        is_answered = status == 200 and trace.num_items > 0
        counter("embedline_requests_total", trace.route, trace.request_class or "none", str(status)).value += 1
        self._histogram("embedline_request_duration_seconds", trace.route).observe(trace.total_seconds)
        self._body_bytes.value += trace.num_body_bytes
        if trace.num_bytes:
            encoding = (is_answered and trace.encoding) or "other"
            counter("embedline_response_bytes_total", encoding).value += trace.num_bytes
        if trace.num_items:
            method, outcome = "single" if trace.is_single else "batch", "ok" if status == 200 else "error"
            counter("te_requests", method, outcome).value += 1
        self._record_stages(trace)
        if is_answered:
            self._answered(trace)
        elif status >= 400:
            self._failed(trace)

    def _record_stages(self, trace: Trace) -> None:
        read, tokenize, queue, compute, respond = self._stages
        if trace.read_seconds:
            read.observe(trace.read_seconds)
        if trace.tokenize_seconds:
            tokenize.observe(trace.tokenize_seconds)
        if trace.compute_seconds:
            queue.observe(trace.queue_seconds)
            compute.observe(trace.compute_seconds)
        if trace.respond_seconds:
            respond.observe(trace.respond_seconds)

    def _answered(self, trace: Trace) -> None:
        counter, model = self._counter, trace.model
        counter("embedline_inputs_total", model).value += trace.num_items
        counter("embedline_input_tokens_total", model).value += trace.num_tokens
        lengths = self._histogram("embedline_input_length_tokens", model, edges=POWERS)
        for length in trace.seqlens:
            lengths.observe(length)
        task = "predict" if trace.is_prediction else "embed"
        counter("te_inputs", task).value += trace.num_items
        self._histogram("te_duration", task).observe(trace.total_seconds)
        if trace.num_truncated:
            counter("embedline_truncated_inputs_total", model).value += trace.num_truncated

    def _failed(self, trace: Trace) -> None:
        if trace.status == CLIENT_LEFT:
            self._counter("embedline_cancelled_total", trace.stage).value += 1
            return
        reason = trace.reason or _REASONS_BY_STATUS.get(trace.status)
        if reason is not None:  # None: a health route that says "not ready"
            self._counter("embedline_rejected_total", reason).value += 1
