"""Counts and durations of one process, kept until its next heartbeat carries them to the supervisor."""

import bisect
from typing import Any

# Seconds: 0.5 ms to 60 s, each 1.6 times the one before (two a doubling, 26 series a histogram).
BUCKETS = tuple(round(0.0005 * 1.6**step, 6) for step in range(26))

Key = tuple[str, ...]  # a metric's name, then its label values in the order of the metric's declaration


class Recorder:
    """Deltas since the last `drain`. server/metrics.py declares names and labels; unknown ones are refused there."""

    def __init__(self) -> None:
        self._counts: dict[Key, float] = {}
        self._durations: dict[Key, list[float]] = {}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        key = (name, *labels)
        self._counts[key] = self._counts.get(key, 0) + by

    def observe(self, name: str, *labels: str, seconds: float) -> None:
        """Put one duration into a histogram."""
        key = (name, *labels)
        cells = self._durations.get(key)
        if cells is None:
            cells = self._durations[key] = [0.0] * (len(BUCKETS) + 2)  # a count a bucket, one above all, the sum
        cells[bisect.bisect_left(BUCKETS, seconds)] += 1
        cells[-1] += seconds

    def drain(self) -> dict[str, Any]:
        """What was recorded since the last call, as JSON takes it."""
        counts, self._counts = self._counts, {}
        durations, self._durations = self._durations, {}
        return {
            "counts": [[*key, value] for key, value in counts.items()],
            "durations": [[*key, cells] for key, cells in durations.items()],
        }
