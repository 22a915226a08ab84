"""The CSV of all parts: a line a figure, written as soon as it is known, read again when a part is taken up again."""

import csv
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FAILED = "failed"  # the metric of what could not be measured; its note says why
BEGUN, TOOK = "begun", "took"  # the first and the last line of what is measured: seconds of the clock, seconds

_NAN = float("nan")


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

    def __init__(self, path: Path, *, machine: str) -> None:
        """`machine` stands in every row, and what is another machine's is not read."""
        self.path = path
        self.machine = machine
        if path.exists():
            _mend(path)
        self._rows = list(_read(path, machine)) if path.exists() else []
        self.run = 1 + max((row.run for row in self._rows), default=0)

    def __contains__(self, key: Key) -> bool:
        """Whether it was measured to its end, or failed."""
        return any(row.key == key and row.figure.metric in (TOOK, FAILED) for row in self._rows)

    def __iter__(self) -> Iterator[Row]:
        """What was measured; what a process that ended left behind is among it."""
        return (row for row in self._rows if row.figure.metric not in (BEGUN, TOOK))

    def num_begun(self, key: Key) -> int:
        """How often."""
        return Counter(row.key for row in self._rows if row.figure.metric == BEGUN)[key]

    def add(self, key: Key, figures: Iterable[Figure]) -> list[Figure]:
        """Each is in the file before the next one is computed; all of them."""
        began = time.monotonic()
        self._write(key, Figure(BEGUN, time.time(), "s"))
        added = []
        for figure in figures:
            self._write(key, figure)
            added.append(figure)
        self._write(key, Figure(TOOK, time.monotonic() - began, "s"))
        return added

    def fail(self, key: Key, why: str) -> Figure:
        """Beside whatever was measured of it before."""
        figure = Figure(FAILED, _NAN, "", why)
        self._write(key, figure)
        return figure

    def value(self, key: Key, metric: str, *, run: int | None = None) -> float | None:
        """The last that was measured (in that run, where one is named); None where there is none."""
        found = [
            row.figure.value
            for row in self._rows
            if (row.key, row.figure.metric) == (key, metric) and run in (None, row.run)
        ]
        return found[-1] if found else None

    def unfinished(self) -> Key | None:
        """What was begun last, where it has no end."""
        begun = [row.key for row in self._rows if row.figure.metric == BEGUN]
        return begun[-1] if begun and begun[-1] not in self else None

    @property
    def began(self) -> float:
        """When the first row was written, in seconds of the clock."""
        return next(row.figure.value for row in self._rows if row.figure.metric == BEGUN)

    def of_kind(self, *kinds: str) -> list[Row]:
        """In the order in which they were measured."""
        return [row for row in self if row.key.kind in kinds]

    def _write(self, key: Key, figure: Figure) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        cells = (self.machine, self.run, key.kind, key.subject, key.precision, key.shape)
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if is_new:
                writer.writerow(HEADER)
            writer.writerow([*cells, figure.metric, repr(figure.value), figure.unit, figure.note])
        self._rows.append(Row(self.run, key, figure))


def join(files: Sequence[Path], into: Path) -> None:
    """One file of all their rows, in which no two of them have a run of the same number."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with into.open("w", newline="") as written:
        writer, last = csv.writer(written, lineterminator="\n"), 0
        writer.writerow(HEADER)
        for file in files:
            _mend(file)
            lines = [line for line in _lines(file) if line != list(HEADER)]
            writer.writerows([machine, last + int(run), *others] for machine, run, *others in lines)
            last += max((int(line[1]) for line in lines), default=0)


def machine_of(file: Path) -> str:
    """The one whose rows come last in it."""
    *_, last = _lines(file)
    return last[0]


def _mend(path: Path) -> None:
    """Take off the line that a killed process did not finish."""
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]))


def _lines(path: Path) -> Iterator[list[str]]:
    with path.open(newline="") as file:
        yield from (line for line in csv.reader(file) if len(line) == len(HEADER))


def _read(path: Path, machine: str) -> Iterator[Row]:
    for line in _lines(path):
        if line[0] == machine:
            _, run, kind, subject, precision, shape, metric, value, unit, note = line
            yield Row(int(run), Key(kind, subject, precision, shape), Figure(metric, float(value), unit, note))
