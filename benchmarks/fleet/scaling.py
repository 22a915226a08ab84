"""Scaling on requests beside scaling on queued tokens: replica-hours at equal p99, over many targets of each.

    python -m benchmarks.fleet.scaling [--load 0.5] [--write]

A day of requests with 1 to 2,048 texts. Only what the autoscaler looks at differs, and its target; window, delay and
rate are the same. A third row of runs balances by tokens too.
"""

import argparse
import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.fleet import machines, plots, traces
from benchmarks.fleet.__main__ import wish_of
from benchmarks.fleet.autoscalers import Rules, Scaler
from benchmarks.fleet.figures import cells, figures
from benchmarks.fleet.fleet import BALANCERS, Fleet
from benchmarks.fleet.traces import Trace
from benchmarks.measuring.report import Report

STREAM = replace(traces.DOCUMENTS, tokens_per_text=60)
P99 = "p99 all s"
HOURS = "replica hours"


@dataclass(frozen=True, slots=True)
class Way:
    """What an autoscaler and a balancer look at."""

    name: str
    scale: str
    balance: str
    targets: tuple[float, ...]


REQUESTS = Way("requests", "requests", "least-requests", (0.7, 1.5, 3, 6))
TOKENS = Way("tokens", "tokens", "least-requests", (20e3, 50e3, 100e3, 200e3))
BY_TOKENS = Way("tokens, balanced by tokens", "tokens", "least-tokens", TOKENS.targets)


def run(trace: Trace, rules: Rules, way: Way, target: float) -> dict[str, float]:
    """The figures of one course."""
    machine = machines.known()["cpu"]
    scaler = Scaler(rules, wish_of(way.scale, target, math.inf))
    return figures(trace, machine, Fleet(trace, machine, scaler, balancer=BALANCERS[way.balance]).run())


def hours_at(p99: float, curve: Sequence[tuple[float, float]]) -> float:
    """Replica-hours of a curve of (replica-hours, p99) at this p99, by the logarithm between its two neighbours; NaN
    beyond its ends."""
    points = sorted((math.log(seconds), hours) for hours, seconds in curve if seconds < math.inf)
    for (low, more), (high, fewer) in itertools.pairwise(points):
        if low <= math.log(p99) <= high:
            return more + (fewer - more) * (math.log(p99) - low) / (high - low)
    return math.nan


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("--load", type=float, default=0.5, help="times 24,000 tokens a second on average")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    trace = traces.draw((STREAM,), seed=arguments.seed, hours=arguments.hours, load=arguments.load)
    rules = Rules()
    report = Report("fleet_scaling", "Scaling a fleet on requests and on queued tokens, simulated")
    curves: dict[str, list[tuple[float, float]]] = {}
    runs = [(way, target) for way in (REQUESTS, TOKENS, BY_TOKENS) for target in way.targets]
    with ProcessPoolExecutor() as pool:
        results = pool.map(partial(run, trace, rules), *zip(*runs, strict=True))
        for (way, target), found in zip(runs, results, strict=True):
            curves.setdefault(way.name, []).append((found[HOURS], found[P99]))
            report.row({"scaled on": way.name, "target": f"{target:g}"} | cells(found), dict(found))
    report.table("At equal p99")
    for hours, p99 in curves[REQUESTS.name]:
        row: dict[str, object] = {P99: f"{p99:.1f}", "hours on requests": f"{hours:.0f}"}
        for way in (TOKENS, BY_TOKENS):
            other = hours_at(p99, curves[way.name])
            row[way.name] = "beyond its targets" if math.isnan(other) else f"{other:.0f} ({other / hours - 1:+.0%})"
        report.row(row)
    report.note(
        f"{len(trace):,} requests of 1 to 2,048 texts (log-uniform), {trace.tokens.sum() / trace.seconds:,.0f} tokens "
        f"a second on average, seed {arguments.seed}. {rules}. Machine: {machines.known()['cpu'].source}."
    )
    report.note("Between two targets replica-hours are interpolated by the logarithm of p99. No request is retried.")
    report.note(
        "Not shown: other traffic, machines and delays; requests that are much alike scale equally well on both."
    )
    if arguments.write:
        panels = [("one day, 1 to 2,048 texts a request", curves)]
        plots.curves(report.plot_path(), panels, "p99 of all requests, seconds")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
