"""Rows as tables: one a kind, and what had to be reached beside what was. Pure."""

import math
from collections.abc import Iterable, Sequence

from benchmarks.gpu.rows import FAILED, Key, Row, Rows
from benchmarks.gpu.targets import TARGETS, Target
from benchmarks.measuring.report import Table

NOT_MEASURED = "not measured"


def tables(rows: Rows) -> list[Table]:
    """A table for each kind, in the order in which they were measured."""
    kinds = dict.fromkeys(row.key.kind for row in rows if row.key.kind != "machine")
    return [_FORMS.get(kind, _table)(kind, rows.of_kind(kind)) for kind in kinds]


def target_table(rows: Rows, *, is_tiny: bool, targets: Sequence[Target] = TARGETS) -> Table:
    """All targets. Toy sizes reach nothing and miss nothing."""
    return Table("What had to be reached", [_target_line(target, rows, is_tiny=is_tiny) for target in targets])


def _target_line(target: Target, rows: Rows, *, is_tiny: bool) -> dict[str, object]:
    key = Key(target.kind, target.subject, target.precision, target.shape)
    value = None if is_tiny else rows.value(key, target.metric)
    return {
        "what": f"{key}: {target.metric}",
        "to reach": f"{'at least' if target.is_lower_bound else 'at most'} {short(target.bound)} {target.unit}".strip(),
        "measured": NOT_MEASURED if value is None else f"{short(value)} {target.unit}".strip(),
        "": verdict(target, value),
    }


def verdict(target: Target, value: float | None) -> str:
    """In a word or two."""
    if value is None:
        return ""
    return "reached" if target.is_met_by(value) else "NOT REACHED"


def _table(kind: str, rows: Sequence[Row]) -> Table:
    lines: dict[Key, dict[str, object]] = {}
    for row in rows:
        key, figure = row.key, row.figure
        line = lines.setdefault(key, {"subject": key.subject, "precision": key.precision, "shape": key.shape})
        if figure.metric == FAILED:
            line["notes"] = f"FAILED: {figure.note}"
            continue
        line[f"{figure.metric} {figure.unit}".strip()] = short(figure.value)
        if figure.note:
            line["notes"] = figure.note
    return Table(kind, [_without_empty(line, lines.values()) for line in lines.values()])


def _grid(kind: str, rows: Sequence[Row]) -> Table:
    """Products by their rate at each precision; what no library computes is refused."""
    lines: dict[tuple[str, str], dict[str, object]] = {}
    for row in rows:
        key, figure = row.key, row.figure
        line = lines.setdefault((key.subject, key.shape), {"product": key.subject, "size": key.shape})
        if figure.metric == "rate":
            line[f"{key.precision} TFLOP/s"] = short(figure.value)
        elif figure.metric == FAILED:
            line[f"{key.precision} TFLOP/s"] = "refused"
            line["notes"] = f"{key.precision}: {figure.note}"
    return Table(kind, [_without_empty(line, lines.values()) for line in lines.values()])


def _list(kind: str, rows: Sequence[Row]) -> Table:
    """A line a figure."""
    lines: list[dict[str, object]] = [
        {
            "what": str(row.key).removeprefix(f"{kind} "),
            "": row.figure.metric,
            "measured": f"{short(row.figure.value)} {row.figure.unit}",
            "notes": row.figure.note,
        }
        for row in rows
    ]
    return Table(kind, lines)


def _without_empty(line: dict[str, object], lines: Iterable[dict[str, object]]) -> dict[str, object]:
    """Columns in which no line has anything are left out; notes come last."""
    used = {name for one in lines for name, value in one.items() if value != ""}
    return {name: line[name] for name in sorted(line, key=lambda name: name == "notes") if name in used}


def short(value: float) -> str:
    """Three digits, or more where the number is larger, or next to 1 as cosines are."""
    if math.isnan(value):
        return ""
    if 0.99 <= value < 1:
        return f"{value:.5f}"
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


_FORMS = {"gemm": _grid, "profile": _list}
