"""The registry: sums what processes send, drops what nobody declared, and writes what Prometheus reads."""

import logging
import time
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from server.metrics import Registry
from tests.structure.sources import sources
from wire.metrics import BUCKETS, Recorder
from wire.page import Page
from wire.vocabulary import RequestClass

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def page() -> Page:
    return Page.create(num_frontends=1, num_managers=2, num_models=1)


@pytest.fixture
def registry(page: Page) -> Registry:
    return Registry(page, [MODEL], lambda: True)


def families(registry: Registry) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(registry.text())}


def value(registry: Registry, sample: str, **labels: str) -> float | None:
    for family in families(registry).values():
        for found in family.samples:
            if found.name == sample and found.labels == labels:
                return float(found.value)
    return None


def test_counts_of_several_processes_are_summed(registry: Registry) -> None:
    for _ in range(2):
        recorder = Recorder()
        recorder.count("embedline_requests_total", "/v1/embeddings", "200", by=3)
        recorder.count("embedline_requests_total", "/v1/embeddings", "400")
        registry.absorb(recorder.drain())
    registry.count("embedline_process_restarts_total", "engine")

    assert value(registry, "embedline_requests_total", route="/v1/embeddings", code="200") == 6
    assert value(registry, "embedline_requests_total", route="/v1/embeddings", code="400") == 2
    assert value(registry, "embedline_process_restarts_total", role="engine") == 1


def test_histograms_are_cumulative_and_add_up(registry: Registry) -> None:
    durations = [0.0001, BUCKETS[0], 0.02, 0.02, 5.0, 1e6]
    for part in (durations[:2], durations[2:]):
        recorder = Recorder()
        for seconds in part:
            recorder.observe("embedline_engine_duration_seconds", MODEL, seconds=seconds)
        registry.absorb(recorder.drain())

    samples = families(registry)["embedline_engine_duration_seconds"].samples
    buckets = [sample for sample in samples if sample.name.endswith("_bucket")]
    assert [sample.labels["le"] for sample in buckets] == [*map(str, BUCKETS), "+Inf"]
    assert [sample.value for sample in buckets] == [
        *(sum(seconds <= edge for seconds in durations) for edge in BUCKETS),
        len(durations),
    ]
    assert value(registry, "embedline_engine_duration_seconds_count", model=MODEL) == len(durations)
    assert value(registry, "embedline_engine_duration_seconds_sum", model=MODEL) == pytest.approx(sum(durations))


def test_what_nobody_declared_is_dropped_and_logged(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    before = registry.text()
    recorder = Recorder()
    recorder.count("embedline_invented_total", "x")
    recorder.count("embedline_requests_total", "/v1/embeddings")  # a label too few
    recorder.observe("embedline_invented_seconds", seconds=1)
    recorder.observe("embedline_requests_total", "/v1/embeddings", "200", seconds=1)  # no histogram

    with caplog.at_level(logging.ERROR):
        registry.absorb(recorder.drain())

    assert len(caplog.records) == 4
    assert registry.text() == before


def test_a_heartbeat_may_carry_nothing(registry: Registry) -> None:
    before = registry.text()
    registry.absorb({})
    registry.absorb(Recorder().drain())

    assert registry.text() == before


def test_levels_are_read_off_the_page(registry: Registry, page: Page) -> None:
    interactive, bulk = RequestClass
    page.queued_tokens[:, 0, interactive] = [5, 7]
    page.queued_tokens[0, 0, bulk] = 1000
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
    last = value(registry, "embedline_seconds_since_last_batch", model=MODEL)
    assert last is not None
    assert last >= 30


def test_before_the_first_batch_there_is_no_time_since_it(registry: Registry) -> None:
    assert value(registry, "embedline_seconds_since_last_batch", model=MODEL) is None


@pytest.mark.parametrize("ready", [True, False])
def test_readiness(page: Page, ready: bool) -> None:
    assert value(Registry(page, [MODEL], lambda: ready), "embedline_ready") == float(ready)


def test_label_values_may_have_any_character(page: Page) -> None:
    name = 'a "quoted" \\ name\nof two lines'
    registry = Registry(page, [name], lambda: True)

    assert value(registry, "embedline_engines_ready", model=name) == 0


def test_every_metric_has_help_and_our_prefix(registry: Registry) -> None:
    assert [
        name
        for name, family in families(registry).items()
        if not name.startswith("embedline_") or not family.documentation
    ] == []


def test_every_declared_counter_is_counted_somewhere(registry: Registry) -> None:
    counted = "".join(source.text for source in sources() if source.path != Path("server/metrics.py"))
    recorded = [name for name, family in families(registry).items() if family.type in ("counter", "histogram")]

    assert len(recorded) > 10
    assert [name for name in recorded if f'"{name}_total"' not in counted and f'"{name}"' not in counted] == []
