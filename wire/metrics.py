"""Counts, distributions and levels of one process, kept until its next heartbeat carries them to the supervisor."""

import bisect
from collections.abc import Callable, Iterable
from typing import Any

Edges = tuple[float, ...]  # of buckets, each of which takes in its upper edge

# 15 µs to 74 s, each 1.5 times the one before. The first 35 are those of text-embeddings-inference, so that its
# metrics and ours are written from the same cells.
SECONDS: Edges = tuple(float(f"{1e-5 * 1.5**step:.6g}") for step in range(1, 40))
POWERS: Edges = tuple(float(2**step) for step in range(21))  # numbers of tokens or sequences
RATIOS: Edges = tuple(step / 10 for step in range(1, 11))

Key = tuple[str, ...]  # a metric's name, then its label values in the order of the metric's declaration


class Recorder:
    """Deltas since the last `drain`, and levels as they are then.

    server/metrics/declared.py declares names and labels; unknown ones are refused there.
    """

    def __init__(self) -> None:
        self._counts: dict[Key, float] = {}
        self._cells: dict[Key, list[float]] = {}
        self._levels: dict[Key, Callable[[], float]] = {}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        key = (name, *labels)
        self._counts[key] = self._counts.get(key, 0) + by

    def observe(self, name: str, *labels: str, value: float, edges: Edges = SECONDS) -> None:
        """Put one value into a histogram; `edges` are the same for each value of a metric."""
        cells = self._cells.get((name, *labels)) or self._new_cells((name, *labels), edges)
        cells[bisect.bisect_left(edges, value)] += 1
        cells[-1] += value

    def observe_each(self, name: str, *labels: str, values: Iterable[float], edges: Edges = SECONDS) -> None:
        """Put many values into a histogram."""
        cells = self._cells.get((name, *labels)) or self._new_cells((name, *labels), edges)
        for value in values:
            cells[bisect.bisect_left(edges, value)] += 1
            cells[-1] += value

    def watch(self, name: str, *labels: str, level: Callable[[], float]) -> None:
        """Send what `level` gives with every drain. One of the labels has to name this process."""
        self._levels[name, *labels] = level

    def drain(self) -> dict[str, Any]:
        """The values recorded since the last call, as JSON takes it."""
        counts, self._counts = self._counts, {}
        cells, self._cells = self._cells, {}
        return {
            "counts": [[*key, value] for key, value in counts.items()],
            "histograms": [[*key, values] for key, values in cells.items()],
            "levels": self.levels(),
        }

    def levels(self) -> list[list[Any]]:
        """The watched levels as they are now: name, label values, value."""
        return [[*key, level()] for key, level in self._levels.items()]

    def _new_cells(self, key: Key, edges: Edges) -> list[float]:
        # a count for each bucket, one for what is above all of them, and the sum
        cells = self._cells[key] = [0] * (len(edges) + 2)
        return cells
