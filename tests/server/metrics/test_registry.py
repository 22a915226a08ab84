"""The registry: sums what processes send, drops what nobody declared, and writes what Prometheus reads."""

import itertools
import logging
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from server.metrics import registry as registry_module
from server.metrics.declared import FOR_TEI
from server.metrics.gauges import GAUGES, PROCESS_GAUGES, ModelGauges, ProcessGauges, ProcessState, ServerGauges
from server.metrics.registry import ALL, PAGES_AT_ONCE, Registry
from server.metrics.tei import TEI
from server.requests.admission import expected_wait
from tests.structure.sources import sources
from wire.metrics import POWERS, SECONDS, Recorder
from wire.page import Page
from wire.vocabulary import RequestClass

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def registry_of(page: Page, *, model: str = MODEL, ready: bool = True) -> Registry:
    info = {"name": model, "engine": "fake", "dtype": "float32", "is_padded": True, "num_fallback_products": 0}
    entry = {"info": info, "devices": ["cpu"], "revision": None}
    seen = ProcessState(title="engine 0", pid=None, is_ready=False, last_beat=0.0, busy_since=None, is_engine=True)
    gauges = ServerGauges(page, [model], is_ready=lambda: ready, expected_wait=expected_wait)
    return Registry([gauges, ModelGauges(lambda: [entry]), ProcessGauges(lambda: [seen])])


@pytest.fixture
def page() -> Page:
    return Page.create(num_frontends=1, num_managers=2, num_models=1)


@pytest.fixture
def registry(page: Page) -> Registry:
    return registry_of(page)


def families(registry: Registry) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(registry.text())}


def value(registry: Registry, sample: str, **labels: str) -> float | None:
    for family in families(registry).values():
        for found in family.samples:
            if found.name == sample and found.labels == labels:
                return float(found.value)
    return None


def stable(registry: Registry) -> list[str]:
    """The page without what the kernel says, which changes by itself."""
    return [line for line in registry.text().splitlines() if "process_" not in line]


def buckets(registry: Registry, name: str) -> list[tuple[float, float]]:
    samples = families(registry)[name].samples
    return [(float(s.labels["le"]), s.value) for s in samples if s.name == f"{name}_bucket"]


def test_the_page_is_what_prometheus_client_would_write() -> None:
    page = Page.create(num_frontends=1, num_managers=1, num_models=1)
    page.tokens_per_second[0, 0] = 2_345_678.9
    name = 'of \\, " and\nthree'
    registry, recorder = registry_of(page, model=name), Recorder()
    recorder.count("embedline_requests_total", "/v1/embeddings", "bulk", "200", by=123_456_789)
    for value in (0.0001, 0.02, 1e6):
        recorder.observe("embedline_engine_duration_seconds", name, value=value)
    registry.absorb(recorder.drain())
    ours, _, _ = registry.text().partition("# HELP te_request_count")

    read_back: Any = SimpleNamespace(collect=lambda: text_string_to_metric_families(ours))
    assert generate_latest(read_back).decode() == ours


def test_counts_of_several_processes_are_summed(registry: Registry) -> None:
    for _ in range(2):
        recorder = Recorder()
        recorder.count("embedline_requests_total", "/v1/embeddings", "bulk", "200", by=3)
        recorder.count("embedline_requests_total", "/v1/embeddings", "none", "400")
        registry.absorb(recorder.drain())
    registry.count("embedline_process_restarts_total", "engine")

    route = {"route": "/v1/embeddings"}
    assert value(registry, "embedline_requests_total", **route, **{"class": "bulk"}, code="200") == 6
    assert value(registry, "embedline_requests_total", **route, **{"class": "none"}, code="400") == 2
    assert value(registry, "embedline_process_restarts_total", role="engine") == 1


def test_histograms_are_cumulative_and_add_up(registry: Registry) -> None:
    durations = [0.0001, SECONDS[9], 0.02, 0.02, 5.0, 1e6]
    for part in (durations[:2], durations[2:]):
        recorder = Recorder()
        for seconds in part:
            recorder.observe("embedline_engine_duration_seconds", MODEL, value=seconds)
        registry.absorb(recorder.drain())

    shown = [*SECONDS[9:], float("inf")]
    assert buckets(registry, "embedline_engine_duration_seconds") == [
        (edge, sum(seconds <= edge for seconds in durations)) for edge in shown
    ]
    assert value(registry, "embedline_engine_duration_seconds_count", model=MODEL) == len(durations)
    assert value(registry, "embedline_engine_duration_seconds_sum", model=MODEL) == pytest.approx(sum(durations))


def test_what_nobody_declared_is_dropped_and_logged(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    before = stable(registry)
    recorder = Recorder()
    recorder.count("embedline_invented_total", "x")
    recorder.count("embedline_requests_total", "/v1/embeddings")  # a label too few
    recorder.observe("embedline_invented_seconds", value=1)
    recorder.observe("embedline_requests_total", "/v1/embeddings", "none", "200", value=1)  # no histogram
    recorder.observe("embedline_batch_tokens", MODEL, value=1)  # other buckets
    recorder.watch("embedline_invented", "frontend 0", level=lambda: 1)

    with caplog.at_level(logging.ERROR):
        registry.absorb(recorder.drain())

    assert len(caplog.records) == 6
    assert stable(registry) == before


def test_a_heartbeat_may_carry_nothing(registry: Registry) -> None:
    before = stable(registry)
    registry.absorb({})
    registry.absorb(Recorder().drain())

    assert stable(registry) == before


def test_levels_are_read_off_the_page(registry: Registry, page: Page) -> None:
    interactive, bulk = RequestClass
    page.queued_tokens[:, 0, interactive] = [5, 7]
    page.queued_tokens[0, 0, bulk] = 1000
    page.admitted_tokens[0, 0] = [15, 1000]
    page.oldest_since[:, 0, bulk] = [time.monotonic() - 100, time.monotonic() - 50]
    page.engines_ready[:, 0] = [1, 2]
    page.tokens_per_second[:, 0] = [1000, 500]
    page.last_batch_at[:, 0] = [0, time.monotonic() - 30]

    assert value(registry, "embedline_queue_tokens", model=MODEL, **{"class": "interactive"}) == 12
    assert value(registry, "embedline_queue_tokens", model=MODEL, **{"class": "bulk"}) == 1000
    assert value(registry, "embedline_queue_oldest_age_seconds", model=MODEL, **{"class": "interactive"}) == 0
    oldest = value(registry, "embedline_queue_oldest_age_seconds", model=MODEL, **{"class": "bulk"})
    assert oldest is not None
    assert oldest >= 100
    assert value(registry, "embedline_engines_ready", model=MODEL) == 3
    assert value(registry, "embedline_engine_tokens_per_second", model=MODEL) == 1500
    waits = {
        its_class: value(registry, "embedline_admission_wait_seconds", model=MODEL, **{"class": its_class})
        for its_class in ("interactive", "bulk")
    }
    assert waits == pytest.approx({"interactive": 15 / 0.7 / 1500, "bulk": 1015 / 1500})
    last = value(registry, "embedline_seconds_since_last_batch", model=MODEL)
    assert last is not None
    assert last >= 30


def test_before_the_first_batch_there_is_no_time_since_it(registry: Registry) -> None:
    assert value(registry, "embedline_seconds_since_last_batch", model=MODEL) is None


@pytest.mark.parametrize("ready", [True, False])
def test_readiness(page: Page, ready: bool) -> None:
    assert value(registry_of(page, ready=ready), "embedline_ready") == float(ready)


def test_label_values_may_have_any_character(page: Page) -> None:
    name = 'a "quoted" \\ name\nof two lines'
    registry = registry_of(page, model=name)

    assert value(registry, "embedline_engines_ready", model=name) == 0


@pytest.mark.holds("Metrics")
def test_what_is_on_the_page_is_what_is_declared(registry: Registry) -> None:
    """Name, type and help of every metric, so that docs/metrics.md, which is made of them, is right too."""
    shown = {
        (line.split(maxsplit=3)[2], line.split(maxsplit=3)[3])
        for line in registry.text().splitlines()
        if line.startswith("# ")
    }
    declared = (*ALL, *GAUGES, *PROCESS_GAUGES, *TEI)

    assert shown == {pair for one in declared for pair in ((one.name, one.kind), (one.name, one.help))}
    assert len({one.name for one in declared}) == len(declared)
    assert [one.name for one in declared if not one.name.startswith(("embedline_", "te_", "process_"))] == []


def test_every_declared_metric_is_recorded_somewhere() -> None:
    text = "".join(source.text for source in sources() if source.path != Path("server/metrics/declared.py"))

    assert [one.name for one in (*ALL, *FOR_TEI) if f'"{one.name}"' not in text] == []


def test_levels_of_a_dead_process_are_forgotten(registry: Registry) -> None:
    for process, level in (("frontend 0", 3), ("frontend 1", 4)):
        recorder = Recorder()
        recorder.watch("embedline_open_requests", process, level=itertools.repeat(level).__next__)
        registry.absorb(recorder.drain())
        registry.absorb(recorder.drain())

    registry.forget("frontend 1")

    samples = families(registry)["embedline_open_requests"].samples
    assert [(sample.labels, sample.value) for sample in samples] == [({"process": "frontend 0"}, 3)]


@pytest.mark.holds("Metrics")
def test_who_asks_too_often_gets_the_last_page_again(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten new pages a second, after a number at once."""
    now = 100.0
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(monotonic=lambda: now))
    registry = registry_of(page)

    def restarts_told() -> float:
        registry.count("embedline_process_restarts_total", "engine")
        return value(registry, "embedline_process_restarts_total", role="engine") or 0

    assert [restarts_told() for _ in range(PAGES_AT_ONCE + 5)] == [*range(1, PAGES_AT_ONCE + 1), *[PAGES_AT_ONCE] * 5]
    now += 0.11
    assert [restarts_told() for _ in range(2)] == [PAGES_AT_ONCE + 6] * 2
    now += 3600
    assert len({restarts_told() for _ in range(2 * PAGES_AT_ONCE)}) == PAGES_AT_ONCE


def test_what_is_served_is_told_by_labels(registry: Registry) -> None:
    labels = {"model": MODEL, "engine": "fake", "dtype": "float32", "devices": "cpu", "revision": ""}

    assert value(registry, "embedline_model_info", **labels) == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong_with_our_names(registry: Registry) -> None:
    fill(registry)
    ours = registry.text().partition("# HELP te_")[0]

    checked = subprocess.run(["promtool", "check", "metrics"], input=ours, text=True, capture_output=True, check=False)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


# text-embeddings-inference


def fill(registry: Registry) -> None:
    recorder: Any = Recorder()
    recorder.count("te_requests", "single", "ok", by=5)
    recorder.count("te_requests", "batch", "ok", by=2)
    recorder.count("te_requests", "batch", "error")
    recorder.count("embedline_rejected_total", "wait", by=3)
    recorder.count("embedline_rejected_total", "concurrency")
    recorder.count("embedline_rejected_total", "batch_size")
    recorder.count("embedline_rejected_total", "unauthorized")
    recorder.count("embedline_cancelled_total", "queue")
    recorder.count("te_inputs", "embed", by=9)
    recorder.count("te_inputs", "predict", by=4)
    recorder.observe("te_duration", "predict", value=1.0)
    for seconds in (1e-5, 0.01, 20.0):
        recorder.observe("te_duration", "embed", value=seconds)
        recorder.observe("embedline_stage_duration_seconds", "queue", value=seconds)
    recorder.observe("embedline_stage_duration_seconds", "read", value=1.0)
    recorder.observe("embedline_batch_tokens", MODEL, value=100, edges=POWERS)
    recorder.observe("embedline_batch_sequences", MODEL, value=5000, edges=POWERS)
    recorder.watch("embedline_queue_sequences", "batch manager 0", level=lambda: 7)
    registry.absorb(recorder.drain())


def test_tei_counts(registry: Registry) -> None:
    fill(registry)

    assert {line for line in registry.text().splitlines() if line.startswith("te_") and "_bucket" not in line} >= {
        'te_request_count{method="single"} 5',
        'te_request_count{method="batch"} 3',
        'te_request_success{method="single"} 5',
        'te_request_success{method="batch"} 2',
        'te_request_failure{err="overloaded"} 4',
        'te_request_failure{err="dropped"} 1',
        'te_request_failure{err="validation"} 0',
        'te_request_failure{err="batch_size"} 1',
        "te_embed_count 9",
        "te_embed_success 9",
        "te_predict_count 4",
        "te_predict_success 4",
        "te_predict_duration_count 1.0",
        "te_queue_size 7",
    }


def test_tei_histograms_have_its_buckets(registry: Registry) -> None:
    fill(registry)

    assert buckets(registry, "te_request_duration")[-1][1] == 4
    for name in ("te_embed_duration", "te_request_queue_duration", "te_embed_queue_duration"):
        edges, counts = zip(*buckets(registry, name), strict=True)
        assert edges == (*SECONDS[:35], float("inf"))
        assert (counts[0], counts[-2], counts[-1]) == (1, 2, 3)
        assert value(registry, f"{name}_sum") == pytest.approx(20.01001)
        assert value(registry, f"{name}_count") == 3
    assert [edge for edge, _ in buckets(registry, "te_request_input_length")][:-1] == [2**k for k in range(20)]
    assert [edge for edge, _ in buckets(registry, "te_batch_next_tokens")][:-1] == [2**k for k in range(21)]
    sizes = buckets(registry, "te_batch_next_size")
    assert [edge for edge, _ in sizes][:-1] == [2**k for k in range(13)]
    assert [count for _, count in sizes][-2:] == [0, 1]


def test_tei_counters_have_no_suffix(registry: Registry) -> None:
    lines = registry.text().splitlines()

    assert "# TYPE te_request_count counter" in lines
    assert 'te_request_count{method="single"} 0' in lines
    assert not [line for line in lines if "te_" in line[:9] and "_total" in line]
