"""Bar plots as small PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLOURS = ("#1b6ca8", "#d98324", "#7a7a7a", "#5aa469", "#a8457a")
_INCHES, _DPI = (4.6, 3.2), 90


def bars(path: Path, panels: Sequence[tuple[str, Mapping[str, Mapping[str, float]]]]) -> None:
    """A panel for each (title, values by series and group) beside each other, from zero, each bar with its number."""
    width, height = _INCHES
    figure = Figure(figsize=(width * len(panels), height), dpi=_DPI, layout="constrained")
    names = list(dict.fromkeys(name for _, series in panels for name in series))
    for number, (title, series) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        _draw(axes, title, series, names)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    figure.savefig(path)


def _draw(axes: Axes, title: str, series: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> None:
    groups = list(dict.fromkeys(group for values in series.values() for group in values))
    width = 0.84 / max(len(series), 1)
    for number, name in enumerate(names):
        values = series.get(name, {})
        places = [at + (number - (len(names) - 1) / 2) * width for at in range(len(groups))]
        heights = [values.get(group, 0.0) for group in groups]
        drawn = axes.bar(places, heights, width * 0.94, label=name, color=_COLOURS[number % len(_COLOURS)])
        axes.bar_label(drawn, [_short(height) for height in heights], fontsize=6.5, padding=1)
    axes.set_title(title, fontsize=9)
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
