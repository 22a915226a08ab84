"""Percentiles, rates and failures out of samples."""

import math

import pytest

from embedline.bench.load import Load, Phase, Sample, percentile, summarize


@pytest.mark.parametrize(
    ("num", "percent", "expected"),
    [(1, 50, 1), (2, 50, 1), (3, 50, 2), (100, 99, 99), (100, 99.9, 100), (1000, 99.9, 999), (10, 0, 1), (10, 100, 10)],
)
def test_percentiles_are_exact_by_nearest_rank(num: int, percent: float, expected: int) -> None:
    assert percentile([float(value) for value in range(1, num + 1)], percent) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    assert math.isnan(percentile([], 50))


def sample(done: float, *, due: float = 10.0, failure: str = "", tokens: int | None = 5) -> Sample:
    return Sample(due, due + 0.001, done, failure, 2, tokens)


def phase(*samples: Sample, load: Load) -> Phase:
    return Phase(load, 10.0, list(samples))


def test_rates_are_over_the_time_until_the_last_answer() -> None:
    summary = summarize(phase(sample(10.5), sample(11.5), sample(14.0), load=Load(concurrency=1, seconds=2.0)))
    assert summary.seconds == 4.0
    assert (summary.requests_per_second, summary.texts_per_second, summary.tokens_per_second) == (0.75, 1.5, 3.75)
    assert summary.latencies_ms == [500.0, 1500.0, 4000.0]
    assert (summary.num_requests, summary.num_texts) == (3, 6)


def test_a_load_lasts_at_least_its_own_time() -> None:
    summary = summarize(phase(sample(10.5), load=Load(concurrency=1, seconds=2.0, rate=1.0)))
    assert (summary.seconds, summary.requests_per_second) == (2.0, 0.5)


def test_so_many_requests_last_until_the_last_good_answer() -> None:
    late = sample(99.0, failure="no answer in 60 s")
    summary = summarize(phase(sample(10.5), sample(14.0), late, load=Load(concurrency=1, num_requests=3)))
    assert (summary.seconds, summary.requests_per_second) == (4.0, 0.5)


def test_failures_count_apart() -> None:
    found = summarize(
        phase(
            sample(10.5),
            sample(10.1, failure="HTTP 429"),
            sample(10.2, failure="HTTP 429"),
            sample(10.3, failure="connection lost"),
            load=Load(concurrency=1, seconds=1.0),
        )
    )
    assert found.failures == {"HTTP 429": 2, "connection lost": 1}
    assert found.latencies_ms == [500.0]


def test_tokens_are_not_known_where_one_answer_does_not_say() -> None:
    load = Load(concurrency=1, seconds=1.0)
    assert summarize(phase(sample(10.5), sample(10.6, tokens=None), load=load)).tokens_per_second is None
    assert summarize(phase(load=load)).tokens_per_second is None


def test_an_open_loop_is_invalid_where_the_generator_was_late() -> None:
    load = Load(concurrency=1, seconds=1.0, rate=10.0)
    on_time = [sample(10.5)] * 99
    one_late = Sample(10.0, 10.2, 10.5, "", 2, 5)
    assert summarize(phase(*on_time, one_late, load=load)).is_valid
    assert not summarize(phase(*on_time, one_late, one_late, load=load)).is_valid


def test_a_closed_loop_has_no_lag() -> None:
    summary = summarize(phase(Sample(10.0, 10.5, 10.6, "", 1, 1), load=Load(concurrency=1, seconds=1.0)))
    assert summary.lag_p99_ms is None
    assert summary.is_valid
