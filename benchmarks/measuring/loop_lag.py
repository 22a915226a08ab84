"""How late the event loops of a server's processes were, by the heartbeats that they count in /metrics."""

import math
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

_NAME = "embedline_event_loop_lag_seconds"


def heartbeats(page: str) -> Counter[float]:
    """How many heartbeats of all processes were at most so late; the keys are seconds."""
    found: Counter[float] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == f"{_NAME}_bucket":
                found[float(sample.labels["le"])] += int(sample.value)
    return found


def lag_percentile(before: Counter[float], after: Counter[float], percent: float) -> float:
    """Seconds that so many percent of the heartbeats between two pages do not exceed, rounded up to a bucket's edge."""
    numbers = {edge: after[edge] - before[edge] for edge in sorted(after)}
    needed = percent / 100 * numbers.get(math.inf, 0)
    return next((edge for edge, number in numbers.items() if number and number >= needed), math.nan)
