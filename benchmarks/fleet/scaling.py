"""Scaling on requests beside scaling on tokens: replica-hours at equal p99, over several days and targets of each.

    python -m benchmarks.fleet.scaling [--seeds 1 2 3 4 5] [--whole] [--kept runs.json] [--write]

Days of requests with 1 to 2,048 texts. Only what the autoscaler looks at differs, its target, and over what time it
takes the mean. All days are run with simplified servers. With --whole, the first of them also with the server's own
scheduler, which takes most of a minute for each target. Runs that are in the file of --kept are not run again.
"""

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.fleet import machines, plots, traces
from benchmarks.fleet.__main__ import wish_of
from benchmarks.fleet.autoscalers import Rules, Scaler
from benchmarks.fleet.fifo import FifoReplica
from benchmarks.fleet.figures import cells, figures
from benchmarks.fleet.fleet import BALANCERS, Fleet
from benchmarks.fleet.replica import Replica
from benchmarks.measuring.report import Report

STREAM = replace(traces.DOCUMENTS, tokens_per_text=60)
MACHINE = machines.known()["cpu"]
P99 = "p99 all s"
HOURS = "replica hours"
LEVELS = (20.0, 24.0, 28.0, 33.0, 40.0, 50.0)  # of p99, seconds
Curve = Sequence[tuple[float, float]]  # (replica-hours, p99) of each target
Known = dict[str, dict[str, float]]  # figures by the key of a run


@dataclass(frozen=True, slots=True)
class Way:
    """What an autoscaler looks at, and its targets."""

    name: str
    scale: str
    window: float  # seconds
    targets: tuple[float, ...]


REQUESTS = Way("requests, mean of 60 s", "requests", 60.0, (0.5, 0.7, 1, 1.5, 3, 4.5, 6, 9))
WAYS = (
    REQUESTS,
    Way("tokens, mean of 60 s", "tokens", 60.0, (20e3, 35e3, 50e3, 70e3, 90e3, 110e3, 140e3, 200e3)),
    Way("tokens: rate of 300 s and queue", "rate", 0.0, (0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.4, 2)),
    Way("requests, the last look", "requests", 0.0, (1, 1.5, 2, 2.5, 4, 5.5, 7, 12)),
    Way("tokens, the last look", "tokens", 0.0, (35e3, 50e3, 70e3, 90e3, 110e3, 140e3, 200e3, 300e3)),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One course of a day."""

    way: Way
    target: float
    seed: int
    load: float
    is_whole: bool = False

    @property
    def key(self) -> str:
        """In the file of --kept."""
        kind = "" if self.is_whole else ", simplified"
        return f"{self.way.name}, {self.target:g}, seed {self.seed}, load {self.load:g}{kind}"

    def figures(self) -> dict[str, float]:
        """Takes two seconds, or most of a minute."""
        trace = traces.draw((STREAM,), seed=self.seed, load=self.load)
        scaler = Scaler(Rules(window=self.way.window), wish_of(self.way.scale, self.target, MACHINE))
        server = Replica if self.is_whole else FifoReplica
        fleet = Fleet(trace, MACHINE, scaler, balancer=BALANCERS["least-requests"], server=server)
        return figures(trace, MACHINE, fleet.run())


def run_all(runs: Sequence[Run], known: Known, kept: Path | None) -> None:
    """Add the figures of those that are missing, also to the file."""
    missing = [run for run in runs if run.key not in known]
    with ProcessPoolExecutor() as pool:
        for run, found in zip(missing, pool.map(Run.figures, missing), strict=True):
            known[run.key] = found
            print(run.key, f"{found[HOURS]:.0f} replica-hours, p99 {found[P99]:.1f} s", flush=True)
            if kept:
                kept.write_text(json.dumps(known))


def beside(run: Run, quick: dict[str, float], whole: dict[str, float]) -> dict[str, object]:
    """A row: simplified servers and the server's own scheduler."""
    row: dict[str, object] = {"scaled on": run.way.name, "target": f"{run.target:g}"}
    for name in (HOURS, P99):
        off = quick[name] / whole[name] - 1
        row |= {
            f"{name}, simplified": f"{quick[name]:.3g}",
            f"{name}, whole": f"{whole[name]:.3g}",
            f"off, {name}": f"{off:+.0%}",
        }
    return row


def hours_at(p99: float, curve: Curve) -> float:
    """Replica-hours of a curve at this p99, by the logarithm between its two neighbours; NaN beyond its ends."""
    points = sorted((math.log(seconds), hours) for hours, seconds in curve if seconds < math.inf)
    for (low, more), (high, fewer) in itertools.pairwise(points):
        if low <= math.log(p99) <= high:
            return more + (fewer - more) * (math.log(p99) - low) / (high - low)
    return math.nan


def mean_curve(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """Of several days, target by target: replica-hours by their mean, p99 by the mean of its logarithm."""
    days = len(curves)
    return [
        (sum(hours for hours, _ in points) / days, math.exp(sum(math.log(p99) for _, p99 in points) / days))
        for points in zip(*curves, strict=True)
    ]


def less(p99: float, curves: Sequence[Curve], others: Sequence[Curve]) -> str:
    """Of the mean of all days: replica-hours of `others`, how they differ from `curves`; and from day to day."""
    hours, base = (hours_at(p99, mean_curve(each)) for each in (others, curves))
    if math.isnan(hours) or math.isnan(base):
        return "beyond the targets"
    pairs = zip(curves, others, strict=True)
    days = [hours_at(p99, other) / hours_at(p99, one) - 1 for one, other in pairs]
    days = [day for day in days if not math.isnan(day)]
    spread = f"; {min(days):+.0%} to {max(days):+.0%}" if len(days) > 1 else ""
    return f"{hours:.0f} ({hours / base - 1:+.0%}{spread})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("--load", type=float, default=0.5, help="times 24,000 tokens a second on average")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="a day each")
    parser.add_argument("--whole", action="store_true", help="the first day with the server's own scheduler too")
    parser.add_argument("--kept", type=Path, help="a JSON file of runs")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    seeds = arguments.seeds
    runs = [Run(way, target, seed, arguments.load) for seed in seeds for way in WAYS for target in way.targets]
    firsts = [replace(run, is_whole=True) for run in runs if run.seed == seeds[0]]
    kept = arguments.kept
    known: Known = json.loads(kept.read_text()) if kept and kept.exists() else {}
    run_all([*runs, *(firsts if arguments.whole else [])], known, kept)
    report = Report("fleet_scaling", "Scaling a fleet on requests and on tokens, simulated")
    curves: dict[Way, list[Curve]] = {}
    for way in WAYS:
        days = [[known[Run(way, target, seed, arguments.load).key] for target in way.targets] for seed in seeds]
        curves[way] = [[(one[HOURS], one[P99]) for one in day] for day in days]
        for target, of_days in zip(way.targets, zip(*days, strict=True), strict=True):
            means = {name: sum(one[name] for one in of_days) / len(of_days) for name in of_days[0]}
            raw = {str(seed): one for seed, one in zip(seeds, of_days, strict=True)}
            report.row({"scaled on": way.name, "target": f"{target:g}"} | cells(means), {"target": target} | raw)
    report.table("Replica-hours at equal p99, beside requests with a mean of 60 s; from day to day")
    for p99 in LEVELS:
        row: dict[str, object] = {P99: f"{p99:g}", REQUESTS.name: f"{hours_at(p99, mean_curve(curves[REQUESTS])):.0f}"}
        report.row(row | {way.name: less(p99, curves[REQUESTS], curves[way]) for way in WAYS[1:]})
    if whole := [run for run in firsts if run.key in known]:
        report.table("Simplified servers beside the server's own scheduler, the first day")
    for run in whole:
        report.row(beside(run, known[replace(run, is_whole=False).key], known[run.key]))
    report.note(
        f"Days of seeds {', '.join(map(str, seeds))} at load {arguments.load:g}, requests of 1 to 2,048 texts "
        f"(log-uniform). {Rules()}, but for the window. Machine: {MACHINE.source}. The first table has means of days."
    )
    report.note(
        "Rate and queue: the tokens that were computed in the last 300 s, over what a machine computes at the target's "
        "utilization, and as many replicas more as compute within 60 s what is queued."
    )
    report.note("Between two targets replica-hours are interpolated by the logarithm of p99. No request is retried.")
    report.note("Not shown: other traffic and machines; requests that are much alike scale equally well on all.")
    if arguments.write:
        panels = [("days of 1 to 2,048 texts a request", {way.name: mean_curve(curves[way]) for way in WAYS})]
        plots.curves(report.plot_path(), panels, "p99 of all requests, seconds")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
