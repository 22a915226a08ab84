"""A histogram of latencies as lines of text. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_ROWS = 16
_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)  # a decade in ten about equal ratios
_COARSER = (_STEPS, (1.0, 1.6, 2.5, 4.0, 6.3), (1.0, 2.0, 5.0), (1.0, 3.2), (1.0,))


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many latencies there are with low <= latency < high, milliseconds."""

    low: float
    high: float
    count: int


def buckets(ordered_ms: Sequence[float]) -> list[Bucket]:
    """Buckets for ascending latencies: round bounds in about equal ratios, at most 16. None is left out."""
    if not ordered_ms:
        return []
    lowest, highest = max(ordered_ms[0], 1e-3), max(ordered_ms[-1], 1e-3)
    bounds: list[float] = []
    for steps in _COARSER:
        bounds = _bounds(lowest, highest, steps)
        if len(bounds) - 1 <= _MAX_ROWS:
            break
    counts = [0] * (len(bounds) - 1)
    row = 0
    for latency in ordered_ms:
        while row < len(counts) - 1 and latency >= bounds[row + 1]:
            row += 1
        counts[row] += 1
    return [Bucket(*span) for span in zip(bounds, bounds[1:], counts, strict=False)]


def render(ordered_ms: Sequence[float], *, width: int = 50) -> list[str]:
    """A line a bucket: its bounds, a bar, its count and the share of all latencies up to its end."""
    rows = buckets(ordered_ms)
    most = max((bucket.count for bucket in rows), default=0)
    lines, so_far = [], 0
    for bucket in rows:
        so_far += bucket.count
        bar = "#" * math.ceil(width * bucket.count / most)
        share = 100 * so_far / len(ordered_ms)
        lines.append(f"{bucket.low:>8g} to {bucket.high:<8g} ms  {bar:<{width}}  {bucket.count:>7}  {share:5.1f} %")
    return lines


def _bounds(lowest: float, highest: float, steps: Sequence[float]) -> list[float]:
    """From the last bound not above `lowest` to the first above `highest`."""
    # one decade more at each end: the logarithm of a number just below a power of ten can be rounded up to that power's
    decades = range(math.floor(math.log10(lowest)) - 1, math.floor(math.log10(highest)) + 2)
    grid = [float(f"{step}e{decade}") for decade in decades for step in steps]
    first = max(index for index, bound in enumerate(grid) if bound <= lowest)
    last = min(index for index, bound in enumerate(grid) if bound > highest)
    return grid[first : last + 1]
