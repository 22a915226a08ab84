"""Counts, distributions and levels of one process, kept until its next heartbeat carries them to the supervisor."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

Edges = tuple[float, ...]  # of buckets, each of which takes in its upper edge

# 15 µs to 74 s, each 1.5 times the one before. The first 35 are those of text-embeddings-inference, so that its
# metrics and ours are written from the same cells.
SECONDS: Edges = tuple(float(f"{1e-5 * 1.5**step:.6g}") for step in range(1, 40))
POWERS: Edges = tuple(float(2**step) for step in range(21))  # numbers of tokens or sequences
RATIOS: Edges = tuple(step / 10 for step in range(1, 11))

Key = tuple[str, ...]  # a metric's name, then its label values in the order of the metric's declaration


class Counter:
    """What was counted of one metric with one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """The values of one metric with one set of labels."""

    __slots__ = ("_edges", "cells")

    def __init__(self, edges: Edges) -> None:
        # a count for each bucket, one for what is above all of them, and the sum
        self.cells: list[float] = [0] * (len(edges) + 2)
        self._edges = edges

    def observe(self, value: float) -> None:
        """Put one value into its bucket."""
        self.cells[bisect_left(self._edges, value)] += 1
        self.cells[-1] += value


class Recorder:
    """Deltas since the last `drain`, and levels as they are then.

    server/metrics/declared.py declares names and labels; unknown ones are refused there.
    """

    def __init__(self) -> None:
        self._counters: dict[Key, Counter] = {}
        self._zeros: set[Key] = set()  # counted by 0 since the last drain
        self._histograms: dict[Key, Histogram] = {}
        self._levels: dict[Key, Callable[[], float]] = {}

    def counter(self, name: str, *labels: str) -> Counter:
        """Of this metric with these labels, always the same one: who counts often keeps it."""
        return self._counters.setdefault((name, *labels), Counter())

    def histogram(self, name: str, *labels: str, edges: Edges = SECONDS) -> Histogram:
        """Of this metric with these labels, always the same one; `edges` are the same for all of a metric."""
        key = (name, *labels)
        return self._histograms.get(key) or self._histograms.setdefault(key, Histogram(edges))

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter. One that is counted by 0 is sent, too: it is there before the first."""
        self.counter(name, *labels).value += by
        if not by:
            self._zeros.add((name, *labels))

    def observe(self, name: str, *labels: str, value: float, edges: Edges = SECONDS) -> None:
        """Put one value into a histogram."""
        self.histogram(name, *labels, edges=edges).observe(value)

    def watch(self, name: str, *labels: str, level: Callable[[], float]) -> None:
        """Send what `level` gives with every drain. One of the labels has to name this process."""
        self._levels[name, *labels] = level

    def drain(self) -> dict[str, Any]:
        """The values recorded since the last call, as JSON takes it."""
        counts = [[*key, one.value] for key, one in self._counters.items() if one.value or key in self._zeros]
        self._zeros.clear()
        used = [(key, one) for key, one in self._histograms.items() if any(one.cells)]
        histograms = [[*key, one.cells] for key, one in used]
        for counter in self._counters.values():
            counter.value = 0
        for _, one in used:
            one.cells = [0] * len(one.cells)
        return {"counts": counts, "histograms": histograms, "levels": self.levels()}

    def levels(self) -> list[list[Any]]:
        """The watched levels as they are now: name, label values, value."""
        return [[*key, level()] for key, level in self._levels.items()]
