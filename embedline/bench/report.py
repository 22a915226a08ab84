"""What a run found: text with a histogram, and JSON where that is asked for. It never shows an API key."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embedline.bench.load import MAX_LAG_MS, Phase, Summary
from embedline.bench.options import Options

PERCENTS = (50.0, 90.0, 99.0, 99.9)
_BAR_WIDTH = 50
_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)  # a decade in ten about equal ratios
_COARSER = (_STEPS, (1.0, 1.6, 2.5, 4.0, 6.3), (1.0, 2.0, 5.0), (1.0, 3.2), (1.0,))


def as_text(options: Options, phase: Phase, summary: Summary) -> str:
    """Lines: what was sent, rates, failures, latencies, histogram."""
    tokens = "not reported" if summary.tokens_per_second is None else f"{summary.tokens_per_second:.0f}"
    lines = [
        _load_line(options),
        f"requests/s  {summary.requests_per_second:.1f}",
        f"texts/s     {summary.texts_per_second:.1f}",
        f"tokens/s    {tokens}",
        f"answered    {summary.num_requests} requests, {summary.num_texts} texts",
        *_failure_lines(phase, summary),
    ]
    if summary.latencies_ms:
        named = [f"p{percent:g} {summary.percentile_ms(percent):.2f}" for percent in PERCENTS]
        lines += [f"latency ms  {'  '.join(named)}  max {summary.latencies_ms[-1]:.2f}"]
    if summary.lag_p99_ms is not None and not math.isnan(summary.lag_p99_ms):
        lines += [f"generator   p99 {summary.lag_p99_ms:.2f} ms late"]
    lines += ["", *render_histogram(summary.latencies_ms)] if summary.latencies_ms else []
    if not summary.is_valid:
        lines += ["", f"INVALID: the generator was late by more than {MAX_LAG_MS:g} ms at the 99th percentile: a lower"]
        lines += ["--rate, or a machine of its own, would measure the server."]
    return "\n".join(lines)


def as_json(options: Options, phase: Phase, summary: Summary) -> str:
    """Everything that as_text says, and every latency."""
    percentiles = {f"p{percent:g}": summary.percentile_ms(percent) for percent in PERCENTS}
    found: dict[str, Any] = {
        "url": options.url,
        "route": options.route,
        "encoding": options.encoding,
        "class": options.request_class,
        "concurrency": options.concurrency,
        "batch_size": options.batch_size,
        "rate": options.rate,
        "arrivals": options.arrivals if options.rate is not None else None,
        "seed": options.seed,
        "texts": None if options.texts is None else str(options.texts),
        "seconds": summary.seconds,
        "is_valid": summary.is_valid,
        "answered_requests": summary.num_requests,
        "answered_texts": summary.num_texts,
        "requests_per_second": summary.requests_per_second,
        "texts_per_second": summary.texts_per_second,
        "tokens_per_second": summary.tokens_per_second,
        "failures": summary.failures,
        "failure_excerpts": phase.excerpts,
        "generator_lag_p99_ms": summary.lag_p99_ms,
        "latency_ms": percentiles | {"max": summary.latencies_ms[-1]} if summary.latencies_ms else None,
        "latencies_ms": [round(latency, 3) for latency in summary.latencies_ms],
    }
    return json.dumps(found, indent=1)


def _load_line(options: Options) -> str:
    texts = "1 text" if options.batch_size == 1 else f"{options.batch_size} texts"
    if options.rate is None:
        return f"closed loop: {options.concurrency} requests of {texts} in flight (seed {options.seed})"
    gaps = f"Poisson, seed {options.seed}" if options.arrivals == "poisson" else f"equal gaps, seed {options.seed}"
    return f"open loop: {options.rate:g} requests/s of {texts} ({gaps}); latency from the time each was due"


def _failure_lines(phase: Phase, summary: Summary) -> list[str]:
    lines = []
    for failure, count in summary.failures.items():
        excerpt = phase.excerpts.get(failure, "")
        lines.append(f"failed      {count} times {failure}" + (f": {excerpt}" if excerpt else ""))
    return lines or ["failed      0"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many latencies there are with low <= latency < high, milliseconds."""

    low: float
    high: float
    count: int


def buckets(ordered_ms: Sequence[float]) -> list[Bucket]:
    """Buckets for ascending latencies: round bounds in about equal ratios, at most 16. None is left out."""
    if not ordered_ms:
        return []
    lowest, highest = max(ordered_ms[0], 1e-3), max(ordered_ms[-1], 1e-3)
    bounds: list[float] = []
    for steps in _COARSER:
        bounds = _bounds(lowest, highest, steps)
        if len(bounds) - 1 <= 16:
            break
    counts = [0] * (len(bounds) - 1)
    row = 0
    for latency in ordered_ms:
        while row < len(counts) - 1 and latency >= bounds[row + 1]:
            row += 1
        counts[row] += 1
    return [Bucket(*span) for span in zip(bounds, bounds[1:], counts, strict=False)]


def render_histogram(ordered_ms: Sequence[float]) -> list[str]:
    """A line a bucket: its bounds, a bar, its count and the share of all latencies up to its end."""
    rows = buckets(ordered_ms)
    most = max((bucket.count for bucket in rows), default=0)
    lines, so_far = [], 0
    for bucket in rows:
        so_far += bucket.count
        bar = ("#" * math.ceil(_BAR_WIDTH * bucket.count / most)).ljust(_BAR_WIDTH)
        share = 100 * so_far / len(ordered_ms)
        lines.append(f"{bucket.low:>8g} to {bucket.high:<8g} ms  {bar}  {bucket.count:>7}  {share:5.1f} %")
    return lines


def _bounds(lowest: float, highest: float, steps: Sequence[float]) -> list[float]:
    """The bounds from the last one not above `lowest` to the first above `highest`."""
    # one decade more at each end: the logarithm of a number just below a power of ten can be rounded up to that power's
    decades = range(math.floor(math.log10(lowest)) - 1, math.floor(math.log10(highest)) + 2)
    grid = [float(f"{step}e{decade}") for decade in decades for step in steps]
    first = max(index for index, bound in enumerate(grid) if bound <= lowest)
    last = min(index for index, bound in enumerate(grid) if bound > highest)
    return grid[first : last + 1]
