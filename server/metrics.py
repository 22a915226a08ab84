"""The metrics there are, and the one registry of the whole server, which lives in the supervisor.

The other processes send what they counted with each heartbeat; levels are read off the shared page when asked.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from embedline import __version__
from wire.control import Json
from wire.metrics import BUCKETS
from wire.page import Page
from wire.vocabulary import RequestClass

MetricsSource = Callable[[], Awaitable[str]]  # Prometheus's text format

logger = logging.getLogger("embedline.server")


@dataclass(frozen=True, slots=True)
class _Declared:
    help: str
    labels: tuple[str, ...]


_COUNTERS = {
    "embedline_requests_total": _Declared("Requests answered, by route and status", ("route", "code")),
    "embedline_input_tokens_total": _Declared("Tokens of answered requests", ("model",)),
    "embedline_truncated_inputs_total": _Declared("Texts that lost tokens to the model's limit", ("model",)),
    "embedline_tokenized_texts_total": _Declared("Texts tokenized", ("model",)),
    "embedline_tokenized_tokens_total": _Declared("Tokens made of them", ("model",)),
    "embedline_tokenize_seconds_total": _Declared("Time spent on that", ("model",)),
    "embedline_batches_total": _Declared("Batches finished", ("model",)),
    "embedline_batch_tokens_total": _Declared("Tokens in finished batches", ("model",)),
    "embedline_batch_sequences_total": _Declared("Sequences in finished batches", ("model",)),
    "embedline_batch_failures_total": _Declared("Batches that failed, by what failed", ("model", "kind")),
    "embedline_refused_total": _Declared("Requests that the batch manager refused, by reason", ("reason",)),
    "embedline_process_restarts_total": _Declared("Processes started again after they died", ("role",)),
}
_HISTOGRAMS = {
    "embedline_request_duration_seconds": _Declared("From the request's head to the answer's last byte", ("route",)),
    "embedline_queue_duration_seconds": _Declared("Wait for a place in a batch", ("model", "class")),
    "embedline_engine_duration_seconds": _Declared("Time a batch computed", ("model",)),
}


class Registry:
    """Sums what the processes send. Unknown names and wrong numbers of labels are logged and dropped."""

    def __init__(self, page: Page, model_names: list[str], is_ready: Callable[[], bool]) -> None:
        self._sums: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _COUNTERS}
        self._cells: dict[str, dict[tuple[str, ...], list[float]]] = {name: {} for name in _HISTOGRAMS}
        self._levels = _Levels(page, model_names, is_ready)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Counted(self._sums, self._cells))
        self._registry.register(self._levels)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        sums = self._sums[name]
        sums[labels] = sums.get(labels, 0) + by

    def absorb(self, deltas: Json) -> None:
        """Take in what wire.metrics.Recorder.drain gave in some process."""
        for name, *labels, value in deltas.get("counts", ()):
            if self._is_declared(name, labels, _COUNTERS):
                self.count(name, *labels, by=value)
        for name, *labels, cells in deltas.get("durations", ()):
            if self._is_declared(name, labels, _HISTOGRAMS):
                held = self._cells[name].setdefault(tuple(labels), [0.0] * len(cells))
                for index, value in enumerate(cells):
                    held[index] += value

    def text(self) -> str:
        """Prometheus's text format."""
        return generate_latest(self._registry).decode()

    @staticmethod
    def _is_declared(name: str, labels: list[str], declared: dict[str, _Declared]) -> bool:
        if name in declared and len(declared[name].labels) == len(labels):
            return True
        logger.error("metric %s with %d labels is not declared in server/metrics.py", name, len(labels))
        return False


class _Counted(Collector):
    """Counters and histograms out of the registry's sums."""

    def __init__(
        self, sums: dict[str, dict[tuple[str, ...], float]], cells: dict[str, dict[tuple[str, ...], list[float]]]
    ) -> None:
        self._sums = sums
        self._cells = cells

    def collect(self) -> Iterator[Metric]:
        for name, declared in _COUNTERS.items():
            family = CounterMetricFamily(name, declared.help, labels=declared.labels)
            for labels, value in self._sums[name].items():
                family.add_metric(labels, value)
            yield family
        for name, declared in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, declared.help, labels=declared.labels)
            for labels, cells in self._cells[name].items():
                histogram.add_metric(labels, _cumulative(cells), sum_value=cells[-1])
            yield histogram


def _cumulative(cells: list[float]) -> list[tuple[str, float]]:
    """Prometheus's buckets count everything at or below their edge."""
    buckets, total = [], 0.0
    for edge, count in zip((*map(str, BUCKETS), "+Inf"), cells, strict=False):  # the last cell is the sum
        total += count
        buckets.append((edge, total))
    return buckets


class _Levels(Collector):
    """Gauges, read when asked: off the shared page, so that they are right even when a process is stuck."""

    def __init__(self, page: Page, model_names: list[str], is_ready: Callable[[], bool]) -> None:
        self._page = page
        self._model_names = model_names
        self._is_ready = is_ready

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("embedline_ready", "1 when a request sent now would be computed", self._is_ready())
        info = GaugeMetricFamily("embedline_build_info", "Always 1", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        by_class = ("model", "class")
        queued = GaugeMetricFamily("embedline_queue_tokens", "Tokens waiting or in an engine", labels=by_class)
        oldest = GaugeMetricFamily("embedline_queue_oldest_age_seconds", "Age of the oldest waiting", labels=by_class)
        engines = GaugeMetricFamily("embedline_engines_ready", "Engines that can take a batch", labels=("model",))
        rate = GaugeMetricFamily("embedline_engine_tokens_per_second", "Measured rate", labels=("model",))
        last = GaugeMetricFamily("embedline_seconds_since_last_batch", "Since a batch finished", labels=("model",))
        now = time.monotonic()
        for index, model in enumerate(self._model_names):
            for request_class in RequestClass:
                labels = (model, request_class.name.lower())
                since = self._page.oldest_since[:, index, request_class]
                queued.add_metric(labels, float(self._page.queued_tokens[:, index, request_class].sum()))
                oldest.add_metric(labels, max(0.0, now - float(since[since > 0].min(initial=now))))
            engines.add_metric((model,), float(self._page.engines_ready[:, index].sum()))
            rate.add_metric((model,), float(self._page.tokens_per_second[:, index].sum()))
            finished_at = float(self._page.last_batch_at[:, index].max())
            if finished_at:
                last.add_metric((model,), now - finished_at)
        yield from (queued, oldest, engines, rate, last)
