"""Plots of a fleet as small PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

from benchmarks.fleet.fleet import Course
from benchmarks.fleet.traces import HOUR, Trace

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLOURS = ("#1b6ca8", "#d98324", "#5aa469", "#a8457a", "#7a7a7a")
_BUCKET_SECONDS = 300.0


def course(path: Path, trace: Trace, course: Course) -> None:
    """Tokens that come, replicas, tokens that wait: by the hour, one below the other."""
    figure = Figure(figsize=(7.5, 5.5), dpi=90, layout="constrained")
    axes = [figure.add_subplot(3, 1, number) for number in (1, 2, 3)]
    edges = np.arange(0, trace.seconds + _BUCKET_SECONDS, _BUCKET_SECONDS)
    tokens, _ = np.histogram(trace.at, edges, weights=trace.tokens)
    axes[0].step(edges[:-1] / HOUR, tokens / _BUCKET_SECONDS, color=_COLOURS[0], lw=0.8)
    hours = [moment.seconds / HOUR for moment in course.moments]
    ready = [moment.num_ready for moment in course.moments]
    axes[1].step(hours, ready, color=_COLOURS[0], lw=0.9, label="ready")
    starting = [moment.num_ready + moment.num_starting for moment in course.moments]
    axes[1].step(hours, starting, color=_COLOURS[1], lw=0.6, label="and starting")
    axes[1].legend(fontsize=7, frameon=False)
    axes[2].step(hours, [moment.num_tokens for moment in course.moments], color=_COLOURS[0], lw=0.6)
    for one, title in zip(axes, ("tokens that come, a second", "replicas", "tokens in replicas"), strict=True):
        _plain(one, title)
    axes[2].set_xlabel("hour", fontsize=8)
    figure.savefig(path)


def curves(path: Path, panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[float, float]]]]], label: str) -> None:
    """A panel for each (title, points by series): replica-hours to the right, `label` upwards on a log scale."""
    figure = Figure(figsize=(4.6 * len(panels), 3.4), dpi=90, layout="constrained")
    for number, (title, series) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        for colour, (name, points) in zip(_COLOURS, series.items(), strict=False):
            axes.plot(*zip(*sorted(points), strict=True), "o-", ms=3, lw=1, color=colour, label=name)
        axes.set_yscale("log")
        axes.set_xlabel("replica-hours", fontsize=8)
        axes.set_ylabel(label, fontsize=8)
        axes.legend(fontsize=7, frameon=False)
        _plain(axes, title)
    figure.savefig(path)


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
