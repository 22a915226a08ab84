"""Shares and latencies as bars, where matplotlib is installed."""

import importlib.util
from pathlib import Path

from benchmarks.gpu.rows import Rows

# part -> (title, kind, metric) of each panel
_PANELS = {
    "ceilings": (("TFLOP/s at 8192³", "ceiling", "rate"),),
    "models": (
        ("share of the rate at 8192³", "model", "share"),
        ("one 32-token query, p50 ms", "latency", "p50"),
    ),
    "server": (("interactive p99 ms", "server", "interactive p99"),),
}


def draw(rows: Rows, part: str, *, is_tiny: bool) -> Path | None:
    """The image beside the CSV; None where there is nothing to draw, or nothing to draw with."""
    if is_tiny or part not in _PANELS or importlib.util.find_spec("matplotlib") is None:
        return None
    panels = [(title, _panel(rows, kind, metric)) for title, kind, metric in _PANELS[part]]
    panels = [(title, series) for title, series in panels if series]
    if not panels:
        return None
    from benchmarks.measuring.plots import bars

    path = rows.path.with_suffix(".png")
    bars(path, panels)
    return path


def _panel(rows: Rows, kind: str, metric: str) -> dict[str, dict[str, float]]:
    """By precision and, within it, by subject and shape."""
    series: dict[str, dict[str, float]] = {}
    for row in rows.of_kind(kind):
        if row.figure.metric == metric:
            series.setdefault(row.key.precision, {})[f"{row.key.subject}\n{row.key.shape}"] = row.figure.value
    return series
