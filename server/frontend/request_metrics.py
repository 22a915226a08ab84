"""Counts finished requests and their durations."""

from server.requests.trace import Trace
from wire.metrics import POWERS, Recorder

_REASONS_BY_STATUS = {404: "route", 405: "method"}  # if FastAPI answers without one of our errors
_STAGE_SECONDS = "embedline_stage_duration_seconds"


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
        if trace.status == 499:
            self._metrics.count("embedline_cancelled_total", trace.stage)
            return
        reason = trace.reason or _REASONS_BY_STATUS.get(trace.status)
        if reason is not None:  # None: a health route that says "not ready"
            self._metrics.count("embedline_rejected_total", reason)
