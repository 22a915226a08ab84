"""How many, how long, how much: the figures of a course, and its files."""

import csv
import math
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.fleet.fleet import Course, Moment
from benchmarks.fleet.machines import Machine
from benchmarks.fleet.traces import Trace
from server.requests.pipeline import BULK_ITEMS, BULK_TOKENS


def percentile(latencies: NDArray[np.float64], percent: float) -> float:
    """Seconds, by nearest rank; a refused request (inf) was never answered. NaN where there are none."""
    return float(np.percentile(latencies, percent, method="inverted_cdf")) if len(latencies) else math.nan


def is_query(trace: Trace) -> NDArray[np.bool_]:
    """Bool [N]: whether the server takes the request as interactive."""
    return (trace.texts <= BULK_ITEMS) & (trace.tokens <= BULK_TOKENS)


def figures(trace: Trace, machine: Machine, course: Course) -> dict[str, float]:
    """Of one course. Percentiles are of all requests, of those that are interactive, and of bulk; inf = refused."""
    latencies, of_queries = np.array(course.latencies), is_query(trace)
    hours = course.replica_seconds / 3600
    found = {"requests": float(len(trace)), "refused": float(course.num_refused), "replica hours": hours}
    found |= {"cost": hours * machine.price_per_hour, "most replicas": most_replicas(course)}
    found["busy"] = course.busy_seconds / (course.replica_seconds * machine.num_engines)
    found["tokens/s"] = float(trace.tokens[np.isfinite(latencies)].sum()) / max(course.seconds, 1e-9)
    for name, part in (("all", latencies), ("queries", latencies[of_queries]), ("bulk", latencies[~of_queries])):
        found |= {f"p{percent} {name} s": percentile(part, percent) for percent in (50, 99)}
    return found


def most_replicas(course: Course) -> float:
    """That were there at once, in the looks of every minute."""
    return float(max((moment.num_ready + moment.num_starting for moment in course.moments), default=0))


def cells(found: dict[str, float]) -> dict[str, object]:
    """For a table."""
    return {name: f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for name, value in found.items()}


def write_minutes(course: Course, path: Path) -> None:
    """A CSV file with a line for each minute."""
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, [one.name for one in fields(Moment)])
        rows.writeheader()
        rows.writerows(asdict(moment) for moment in course.moments)
