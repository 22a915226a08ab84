"""The figures of each run, what several runs of a load come to, and their plot."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.load import Measured
from benchmarks.measuring.report import Report

LOWEST_COSINE, SPEARMAN = "lowest cosine", "Spearman"
IDLE_MEMORY, MEMORY = "PSS MB idle after the last start", "PSS MB after all loads"
_IN_PLOT = ("mixed, 64 x 1", "mixed, 8 x 32")


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one load on one server."""

    label: str
    case: str
    server: str
    tokens_per_text: float  # the corpus' mean: not every server counts tokens, and one counts characters
    measured: Measured

    @property
    def texts_per_second(self) -> float:
        return self.measured.summary.texts_per_second

    def percentile_ms(self, percent: float) -> float:
        return self.measured.summary.percentile_ms(percent)

    def raw(self) -> dict[str, object]:
        """Unrounded, for programs."""
        summary = self.measured.summary
        return {
            "round": self.label,
            "load": self.case,
            "server": self.server,
            "texts_per_second": self.texts_per_second,
            "tokens_per_text": self.tokens_per_text,
            **{f"p{percent}_ms": self.percentile_ms(percent) for percent in (50, 90, 99)},
            "num_requests": summary.num_requests,
            "num_texts": summary.num_texts,
            "seconds": summary.seconds,
            "cpu_seconds": self.measured.cpu_seconds,
            "foreign_share": self.measured.foreign_share,
            "failures": summary.failures,
        }

    def row(self) -> dict[str, object]:
        """Cells."""
        summary = self.measured.summary
        failures = "; ".join(f"{count} x {failure}" for failure, count in summary.failures.items())
        return {
            "round": self.label,
            "load": self.case,
            "server": self.server,
            "texts/s": f"{self.texts_per_second:.1f}",
            "tokens/s": f"{self.texts_per_second * self.tokens_per_text:.0f}",
            "p50 ms": f"{self.percentile_ms(50):.1f}",
            "p99 ms": f"{self.percentile_ms(99):.1f}",
            "requests": summary.num_requests,
            "CPU ms a text": f"{self.measured.cpu_per_1000_texts:.2f}",
            "foreign CPU": f"{self.measured.foreign_share:.0%}",
            **({"failed": failures} if failures else {}),
        }


def median(figures: Sequence[Figures], case: str, server: str, value: Callable[[Figures], float]) -> float:
    """Over the rounds of a load on a server; NaN where there is none."""
    found = [value(one) for one in figures if (one.case, one.server) == (case, server)]
    return statistics.median(found) if found else float("nan")


def write_summary(report: Report, figures: Sequence[Figures], *, ours: str) -> None:
    """A row for each load and server: medians over the rounds, and how ours compares."""
    for case in dict.fromkeys(one.case for one in figures):
        for server in dict.fromkeys(one.server for one in figures if one.case == case):
            runs = [one for one in figures if (one.case, one.server) == (case, server)]
            rates = [one.texts_per_second for one in runs]
            values = [
                (name, median(figures, case, server, value), median(figures, case, ours, value))
                for name, value in _VALUES.items()
            ]
            cells = {name: _short(theirs) for name, theirs, _ in values}
            ratios = {f"{ours}: {name}": _ratio(own, theirs) for name, theirs, own in values}
            spread = {
                "lowest to highest texts/s": f"{min(rates):.1f} to {max(rates):.1f}",
                "highest foreign CPU": f"{max(one.measured.foreign_share for one in runs):.0%}",
            }
            report.row({"load": case, "server": server, **cells, **spread, **(ratios if server != ours else {})})


def write_side_by_side(
    report: Report, figures: Sequence[Figures], facts: Mapping[str, Mapping[str, float]], *, ours: str
) -> None:
    """A row for each load and value, a column for each server: medians, and how many times as good ours is as it.

    `facts`: what no load tells, by name and server. The last column has the server that ours does worst against.
    """
    for case in dict.fromkeys(one.case for one in figures):
        servers = dict.fromkeys(one.server for one in figures if one.case == case)
        for name in _judged(case):
            values = {server: median(figures, case, server, _VALUES[name]) for server in servers}
            report.row({"": f"{case}, {name}", **_beside(name, values, ours=ours)})
    for name, facts_of in facts.items():
        report.row({"": name, **_beside(name, facts_of, ours=ours)})


def _beside(name: str, values: Mapping[str, float], *, ours: str) -> dict[str, str]:
    cells = {server: _FORMS.get(name, _short)(value) for server, value in values.items()}
    if name in _FIDELITY or ours not in values:
        return cells
    ratios = {server: how_good(name, values[ours], value) for server, value in values.items() if server != ours}
    others = {server: ratio for server, ratio in ratios.items() if not server.startswith(ours) and ratio > 0}
    cells |= {server: f"{cells[server]} ({ratio:.2f} x)" for server, ratio in ratios.items()}
    worst = min(others, key=others.__getitem__, default="")
    return cells | {f"{ours} at worst": f"{others[worst]:.2f} x ({worst})" if worst else ""}


def write_extremes(report: Report, figures: Sequence[Figures], *, ours: str) -> None:
    """For each server of ours and each of others, where ours does best and worst against it."""
    servers = dict.fromkeys(one.server for one in figures)
    for own, server in itertools.product(servers, servers):
        if not own.startswith(ours) or server.startswith(ours):
            continue
        ratios = {
            f"{case}, {name}": how_good(name, *(median(figures, case, one, _VALUES[name]) for one in (own, server)))
            for case in dict.fromkeys(one.case for one in figures)
            for name in _judged(case)
        }
        found = sorted((ratio, where) for where, ratio in ratios.items() if ratio > 0)
        at = {words: f"{found[n][0]:.2f} x ({found[n][1]})" for words, n in (("at best", -1), ("at worst", 0)) if found}
        report.row({"server": own, "against": server, **at})


def how_good(name: str, ours: float, theirs: float) -> float:
    """Above 1 where ours is better: more texts a second, fewer milliseconds or MB. NaN where one has no figure."""
    if not (ours > 0 and theirs > 0):
        return math.nan
    return ours / theirs if name == "texts/s" else theirs / ours


def _judged(case: str) -> tuple[str, ...]:
    """One request at a time tells how long it takes; the 99th percentile of few large ones is just the longest."""
    if case.startswith("lone query"):
        return ("p50 ms", "p99 ms", "CPU ms a text")
    return ("texts/s", "p99 ms") if case.endswith("x 1") else ("texts/s",)


def _ratio(ours: float, theirs: float) -> str:
    """Nothing where one of them has no figure."""
    return f"{ours / theirs:.2f} x" if ours > 0 and theirs > 0 else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


_FIDELITY = (LOWEST_COSINE, SPEARMAN)
_FORMS: dict[str, Callable[[float], str]] = {LOWEST_COSINE: "{:.6f}".format, SPEARMAN: "{:.2f}".format}
_VALUES: dict[str, Callable[[Figures], float]] = {
    "texts/s": lambda one: one.texts_per_second,
    "p50 ms": lambda one: one.percentile_ms(50),
    "p99 ms": lambda one: one.percentile_ms(99),
    "CPU ms a text": lambda one: one.measured.cpu_per_1000_texts,
}


def draw(path: Path, figures: Sequence[Figures]) -> None:
    """Texts a second and latency of the mixed loads, and the lone query."""
    from benchmarks.measuring.plots import bars

    servers = list(dict.fromkeys(one.server for one in figures))

    def panel(cases: Sequence[str], value: Callable[[Figures], float]) -> dict[str, dict[str, float]]:
        return {server: {case: median(figures, case, server, value) for case in cases} for server in servers}

    bars(
        path,
        [
            ("texts/s (more is better)", panel(_IN_PLOT, _VALUES["texts/s"])),
            ("p99 ms (less is better)", panel(_IN_PLOT, _VALUES["p99 ms"])),
            ("lone query, p50 ms (less is better)", panel(["lone query"], _VALUES["p50 ms"])),
        ],
    )
