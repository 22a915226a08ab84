"""Rows as tables: one a kind, and what had to be reached beside what was. Pure."""

import math
from collections.abc import Iterable, Sequence

from benchmarks.gpu.machine import TOY
from benchmarks.gpu.rows import FAILED, Key, Row, Rows
from benchmarks.gpu.targets import TARGETS, Target
from benchmarks.measuring.report import Table

NOT_MEASURED = "not measured"


def tables(rows: Rows) -> list[Table]:
    """A table for each kind, in the order in which they were measured."""
    return [_table(kind, rows.of_kind(kind)) for kind in dict.fromkeys(row.key.kind for row in rows)]


def target_table(rows: Rows, *, is_tiny: bool, targets: Sequence[Target] = TARGETS) -> Table:
    """The targets of the kinds that were measured. Toy sizes reach nothing and miss nothing."""
    kinds = {row.key.kind for row in rows}
    lines = [_target_line(target, rows, is_tiny=is_tiny) for target in targets if target.kind in kinds]
    return Table("What had to be reached", lines)


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


def warning(*, is_tiny: bool) -> list[str]:
    """What stands above everything of a toy run."""
    return [f"**{TOY.upper()}. The numbers below check the code of this benchmark and say nothing of any speed.**"] * (
        is_tiny
    )
