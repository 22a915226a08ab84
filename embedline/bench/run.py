"""One run from options to exit code: texts, requests, warm-up, load, report.

The report is text with a histogram, and JSON where that is asked for. It never shows an API key.
"""

import asyncio
import contextlib
import dataclasses
import importlib
import importlib.util
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from embedline.bench.connection import ConnectionLost, TookTooLong
from embedline.bench.load import MAX_LAG_MS, Generator, Load, Phase, Summary, summarize
from embedline.bench.options import Options, OptionsError, Target, parse_url
from embedline.bench.requests import HttpRequest, built_in_texts, prepare, read_texts
from embedline.progress import LINE_SECONDS, bar

_MIN_TEXTS, _MAX_TEXTS = 4096, 65_536  # built in; texts that recur too soon could be joined by the server
_BAR_SECONDS = 1.0  # drawing keeps the generator for some milliseconds: of fewer than 1 % of its requests
PERCENTS = (50.0, 90.0, 99.0, 99.9)
_MAX_ROWS = 16
_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)  # a decade in ten about equal ratios
_COARSER = (_STEPS, (1.0, 1.6, 2.5, 4.0, 6.3), (1.0, 2.0, 5.0), (1.0, 3.2), (1.0,))
_Result = TypeVar("_Result")


def run(options: Options) -> int:
    """The exit code: 1 where the server can't be reached or answered nothing. Raises OptionsError."""
    target = parse_url(options.url)
    requests = prepare(options, target, _texts(options))
    _check_writable(options.json)
    try:
        phase = run_on_loop(_drive(options, target, requests))
    except (ConnectionLost, TookTooLong) as error:
        reason = str(error) or "no answer"
        print(f"embedline: {target.host}:{target.port} can't be reached: {reason}", file=sys.stderr)
        return 1
    summary = summarize(phase)
    print(as_text(options, phase, summary))
    if options.json is not None:
        options.json.write_text(as_json(options, phase, summary), encoding="utf-8")
    return 0 if summary.num_requests else 1


def run_on_loop(work: Coroutine[None, None, _Result]) -> _Result:
    """Run on uvloop where it is installed: the generator then costs about half."""
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    factory: Callable[[], asyncio.AbstractEventLoop] | None = (
        importlib.import_module("uvloop").new_event_loop if has_uvloop else None
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


async def _drive(options: Options, target: Target, requests: list[HttpRequest]) -> Phase:
    """The phase that counts, after its warm-up."""
    load = _load(options)
    generator = Generator(target, requests, patience=options.timeout)
    display = None
    try:
        await generator.check()
        display = _Display()
        if options.warmup:
            warmup = Phase(dataclasses.replace(load, seconds=options.warmup, num_requests=None))
            async with _shown(display, "warm-up", warmup):
                await generator.run(warmup)
        phase = Phase(load)
        async with _shown(display, "load", phase):
            await generator.run(phase)
        return phase
    finally:
        generator.close()
        if display is not None:
            display.close()


def _load(options: Options) -> Load:
    return Load(
        concurrency=options.concurrency,
        seconds=options.duration if options.requests is None else None,
        num_requests=options.requests,
        rate=options.rate,
        seed=options.seed if options.arrivals == "poisson" else None,
    )


def _texts(options: Options) -> list[str]:
    if options.texts is not None:
        return read_texts(options.texts)
    num = min(max(_MIN_TEXTS, 2 * options.concurrency * options.batch_size), _MAX_TEXTS)
    return built_in_texts(num, seed=options.seed)


def _check_writable(path: Path | None) -> None:
    """Before the run and not after it."""
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as error:
        raise OptionsError(f"--json {path}: {error.strerror}") from None


class _Display:
    """Shows on stderr how far the phases are: by a bar, else by a line now and then."""

    def __init__(self) -> None:
        columns = ("{task.description:<8}", "BarColumn", "{task.fields[answers]} answers", "TimeElapsedColumn")
        self._bar = bar(sys.stderr, *columns, auto_refresh=False)
        self.period = LINE_SECONDS if self._bar is None else _BAR_SECONDS
        if self._bar is not None:
            names = ("warm-up", "load")
            self._tasks = {name: self._bar.add_task(name, total=1.0, answers=0, start=False) for name in names}
            self._bar.start()

    def update(self, name: str, share: float, num_answers: int) -> None:
        """`share` of the phase is done, from 0 to 1."""
        if self._bar is None:
            print(f"{name}: {share:.0%}, {num_answers} answers", file=sys.stderr, flush=True)
            return
        self._bar.start_task(self._tasks[name])
        self._bar.update(self._tasks[name], completed=share, answers=num_answers)
        self._bar.refresh()

    def close(self) -> None:
        """The run is over."""
        if self._bar is not None:
            self._bar.stop()


@contextlib.asynccontextmanager
async def _shown(display: _Display, name: str, phase: Phase) -> AsyncIterator[None]:
    """Show the phase while the block runs it."""

    async def keep_showing() -> None:
        began = time.perf_counter()
        while True:
            display.update(name, _share(phase, time.perf_counter() - began), len(phase.samples))
            await asyncio.sleep(display.period)

    task = asyncio.create_task(keep_showing())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    display.update(name, 1.0, len(phase.samples))


def _share(phase: Phase, elapsed: float) -> float:
    load = phase.load
    share = elapsed / load.seconds if load.seconds else len(phase.samples) / max(load.num_requests or 1, 1)
    return min(share, 1.0)


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
        if len(bounds) - 1 <= _MAX_ROWS:
            break
    counts = [0] * (len(bounds) - 1)
    row = 0
    for latency in ordered_ms:
        while row < len(counts) - 1 and latency >= bounds[row + 1]:
            row += 1
        counts[row] += 1
    return [Bucket(*span) for span in zip(bounds, bounds[1:], counts, strict=False)]


def render_histogram(ordered_ms: Sequence[float], *, width: int = 50) -> list[str]:
    """A line a bucket: its bounds, a bar, its count and the share of all latencies up to its end."""
    rows = buckets(ordered_ms)
    most = max((bucket.count for bucket in rows), default=0)
    lines, so_far = [], 0
    for bucket in rows:
        so_far += bucket.count
        bar = "#" * math.ceil(width * bucket.count / most)
        share = 100 * so_far / len(ordered_ms)
        lines.append(f"{bucket.low:>8g} to {bucket.high:<8g} ms  {bar:<{width}}  {bucket.count:>7}  {share:5.1f} %")
    return lines


def _bounds(lowest: float, highest: float, steps: Sequence[float]) -> list[float]:
    """The bounds from the last one not above `lowest` to the first above `highest`."""
    # one decade more at each end: the logarithm of a number just below a power of ten can be rounded up to that power's
    decades = range(math.floor(math.log10(lowest)) - 1, math.floor(math.log10(highest)) + 2)
    grid = [float(f"{step}e{decade}") for decade in decades for step in steps]
    first = max(index for index, bound in enumerate(grid) if bound <= lowest)
    last = min(index for index, bound in enumerate(grid) if bound > highest)
    return grid[first : last + 1]
