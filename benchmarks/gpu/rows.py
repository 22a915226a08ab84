"""The CSV of one part: a row a figure, written as soon as it is known, read again when a part is taken up again."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

FAILED = "failed"  # the metric of what could not be measured; its note says why


@dataclass(frozen=True, slots=True)
class Key:
    """What was measured."""

    kind: str  # "gemm", "attention", …
    subject: str
    precision: str = ""
    shape: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.subject, self.precision, self.shape)))


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of it."""

    metric: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A line."""

    run: int  # counts the processes that wrote into this file: ceilings hold for rows of the same one
    key: Key
    figure: Figure


HEADER = ("machine", "run", "kind", "subject", "precision", "shape", "metric", "value", "unit", "note")


class Rows:
    """All rows of a file, and the way to add to it."""

    def __init__(self, path: Path, *, machine: str, fresh: bool = False) -> None:
        """`machine` stands in every row, so that none is ever taken for another machine's."""
        self.path = path
        self._machine = machine
        if fresh:
            path.unlink(missing_ok=True)
        if path.exists():
            _mend(path)
        self._rows = list(_read(path)) if path.exists() else []
        self._done = {row.key for row in self._rows}
        self.run = 1 + max((row.run for row in self._rows), default=0)

    def __contains__(self, key: Key) -> bool:
        return key in self._done

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def add(self, key: Key, figures: Iterable[Figure]) -> None:
        """All figures of a key, in one write: it is in the file as a whole or not at all."""
        rows = [Row(self.run, key, figure) for figure in figures]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows(([HEADER] if is_new else []) + [self._cells(row) for row in rows])
        self._rows += rows
        self._done.add(key)

    def value(self, key: Key, metric: str, *, run: int | None = None) -> float | None:
        """The last that was measured (in that run, where one is named); None where there is none."""
        found = [
            row.figure.value
            for row in self._rows
            if (row.key, row.figure.metric) == (key, metric) and run in (None, row.run)
        ]
        return found[-1] if found else None

    def of_kind(self, *kinds: str) -> list[Row]:
        """In the order in which they were measured."""
        return [row for row in self._rows if row.key.kind in kinds]

    def _cells(self, row: Row) -> list[object]:
        key, figure = row.key, row.figure
        cells = (self._machine, row.run, key.kind, key.subject, key.precision, key.shape)
        return [*cells, figure.metric, repr(figure.value), figure.unit, figure.note]


def _mend(path: Path) -> None:
    """Take off what a killed process did not finish: the line, and the lines before it that are of the same key."""
    lines = path.read_text().splitlines(keepends=True)
    if not lines or lines[-1].endswith("\n"):
        return
    whole = list(csv.reader(lines[:-1]))
    num_kept = len(whole)
    while num_kept > 1 and whole[num_kept - 1][1:6] == whole[-1][1:6]:
        num_kept -= 1
    path.write_text("".join(lines[:num_kept]))


def _read(path: Path) -> Iterator[Row]:
    with path.open(newline="") as file:
        for line in csv.reader(file):
            if len(line) != len(HEADER) or tuple(line) == HEADER:
                continue
            _, run, kind, subject, precision, shape, metric, value, unit, note = line
            yield Row(int(run), Key(kind, subject, precision, shape), Figure(metric, float(value), unit, note))
