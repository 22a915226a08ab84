"""Summarises the samples of a run. Pure: percentiles are exact, by nearest rank over every latency."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from embedline.bench.load import Phase, Sample

PERCENTS = (50.0, 90.0, 99.0, 99.9)
MAX_LAG_MS = 10.0  # p99; a generator that is later than this has measured itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Rates are over all requests that were answered with 200, and the time until the last of these answers."""

    seconds: float  # from the first request to the last answer, at least the load's own
    num_requests: int  # answered with 200
    num_texts: int  # in these
    requests_per_second: float
    texts_per_second: float
    tokens_per_second: float | None  # None where the server doesn't say how many it read
    failures: dict[str, int]  # how many requests failed in which way
    latencies_ms: list[float]  # ascending; in an open loop from when the request was to be sent
    lag_p99_ms: float | None  # of an open loop: how much later than due the generator came to a request

    @property
    def is_valid(self) -> bool:
        """Whether the generator kept to its schedule."""
        return self.lag_p99_ms is None or self.lag_p99_ms <= MAX_LAG_MS

    def percentile_ms(self, percent: float) -> float:
        """NaN where no request was answered."""
        return percentile(self.latencies_ms, percent)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least this percentage of the values does not exceed; NaN if there are none."""
    if not ordered:
        return math.nan
    # 99.9 / 100 * 1000 is a little more than 999 in binary, and rank 1000 would be one too many
    rank = math.ceil(round(percent * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


def summarize(phase: Phase) -> Summary:
    """The summary of a phase that has ended."""
    load = phase.load
    good = [sample for sample in phase.samples if not sample.failure]
    # what is in flight when the time is up counts, and so does the time it takes: large answers come in bursts
    seconds = max(load.seconds or 1e-9, max((sample.done for sample in good), default=0.0) - phase.began)
    num_texts = sum(sample.num_texts for sample in good)
    lags = sorted(1000 * (sample.sent - sample.due) for sample in phase.samples)
    return Summary(
        seconds=seconds,
        num_requests=len(good),
        num_texts=num_texts,
        requests_per_second=len(good) / seconds,
        texts_per_second=num_texts / seconds,
        tokens_per_second=_tokens_per_second(good, seconds),
        failures=dict(Counter(sample.failure for sample in phase.samples if sample.failure).most_common()),
        latencies_ms=sorted(1000 * (sample.done - sample.due) for sample in good),
        lag_p99_ms=None if load.rate is None else percentile(lags, 99),
    )


def _tokens_per_second(samples: Sequence[Sample], seconds: float) -> float | None:
    counts = [sample.num_tokens for sample in samples if sample.num_tokens is not None]
    return sum(counts) / seconds if counts and len(counts) == len(samples) else None
