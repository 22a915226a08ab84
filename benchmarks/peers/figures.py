"""The figures of each run, what several runs of a load come to, and their plot."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.load import Measured
from benchmarks.measuring.report import Report

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
            "CPU s/1000 texts": f"{self.measured.cpu_per_1000_texts:.2f}",
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


def write_extremes(report: Report, figures: Sequence[Figures], *, ours: str) -> None:
    """For each server of others the loads in which ours does best and worst against it, by texts a second."""
    for server in dict.fromkeys(one.server for one in figures if not one.server.startswith(ours)):
        ratios = {
            case: median(figures, case, ours, _VALUES["texts/s"]) / median(figures, case, server, _VALUES["texts/s"])
            for case in dict.fromkeys(one.case for one in figures if one.server == server)
        }
        best, worst = max(ratios, key=ratios.__getitem__), min(ratios, key=ratios.__getitem__)
        report.row(
            {
                "against": server,
                f"{ours} at best": f"{ratios[best]:.2f} x ({best})",
                f"{ours} at worst": f"{ratios[worst]:.2f} x ({worst})",
            }
        )


def _ratio(ours: float, theirs: float) -> str:
    """Nothing where one of them has no figure."""
    return f"{ours / theirs:.2f} x" if ours > 0 and theirs > 0 else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


_VALUES: dict[str, Callable[[Figures], float]] = {
    "texts/s": lambda one: one.texts_per_second,
    "p50 ms": lambda one: one.percentile_ms(50),
    "p99 ms": lambda one: one.percentile_ms(99),
    "CPU s/1000 texts": lambda one: one.measured.cpu_per_1000_texts,
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
