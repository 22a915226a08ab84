"""The report of a run, as text for a terminal and as JSON. Never shows an API key."""

import json
import math
from typing import Any

from embedline.bench import histogram
from embedline.bench.load import Phase
from embedline.bench.options import Options
from embedline.bench.summary import MAX_LAG_MS, PERCENTS, Summary


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
    lines += ["", *histogram.render(summary.latencies_ms)] if summary.latencies_ms else []
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
