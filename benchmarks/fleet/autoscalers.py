"""Autoscalers: from what they see of a fleet to how many replicas there should be.

`Scaler` is the part that all share, with the knobs that Baseten and Knative have: the wish is averaged over a window
and followed upwards at once; downwards only when it stayed low for a delay, and then by a part of the excess, delay
by delay. With a window of 0, a delay of 300 s and a rate of 1 it is the HorizontalPodAutoscaler's, as KEDA drives it.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_Value = TypeVar("_Value", int, float)


@dataclass(frozen=True, slots=True)
class Seen:
    """A fleet at one moment."""

    now: float  # seconds
    num_replicas: int  # ready ones, and those that start
    num_requests: int  # in flight: in replicas, and parked while none is ready
    num_parked: int
    num_tokens: int  # that wait or are computed in replicas
    oldest_wait: float  # seconds
    computed_tokens: int = 0  # of all replicas, since the beginning


Wish = Callable[[Seen], float]  # how many replicas there should be, not rounded


def by_requests(target: float) -> Wish:
    """So many requests in flight for each replica: Baseten's concurrency_target times its utilization."""
    return lambda seen: seen.num_requests / target


def by_tokens(target: float, max_wait: float = math.inf) -> Wish:
    """So many tokens for each replica; and more in proportion, while the oldest waits longer than `max_wait` seconds.

    Parked requests have no tokens that anybody knows, so the first one wishes for one replica.
    """

    def wish(seen: Seen) -> float:
        by_wait = seen.num_replicas * seen.oldest_wait / max_wait if seen.oldest_wait > max_wait else 0.0
        return max(seen.num_tokens / target, by_wait, min(1, seen.num_parked))

    return wish


def by_rate(tokens_per_second: float, utilization: float, *, wait: float = 60.0, window: float = 300.0) -> Wish:
    """As many replicas as compute what the last `window` seconds computed at this utilization, and those that compute
    within `wait` seconds what waits now. `tokens_per_second` is of one replica."""
    past: deque[tuple[float, int]] = deque()

    def wish(seen: Seen) -> float:
        _remember(past, seen.now, seen.computed_tokens, seconds=window)
        since, before = past[0]
        rate = (seen.computed_tokens - before) / (seen.now - since) if seen.now > since else 0.0
        work = rate / utilization + seen.num_tokens / wait
        return max(work / tokens_per_second, min(1, seen.num_parked))

    return wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The knobs; the defaults are Baseten's but for the numbers of replicas."""

    min_replicas: int = 1
    max_replicas: int = 64
    period: float = 2.0  # seconds between two looks; Knative's. KEDA's are 30, and those of the HPA 15
    window: float = 60.0  # seconds over which the wish is averaged; 0 = the last look alone
    delay: float = 900.0  # seconds
    rate: float = 0.5  # of the excess that goes at a time


class Scaler:
    """Says how many replicas there should be. Without a wish they stay as many as there are."""

    def __init__(self, rules: Rules, wish: Wish | None) -> None:
        self.rules = rules
        self._wish = wish
        self._wishes: deque[tuple[float, float]] = deque()  # within the window: when, how many
        self._wished: deque[tuple[float, int]] = deque()  # within the delay
        self._next_down = rules.delay  # seconds: no fewer before

    def look(self, seen: Seen) -> int:
        """How many there should be now."""
        if self._wish is None:
            return seen.num_replicas
        rules, now = self.rules, seen.now
        _remember(self._wishes, now, self._wish(seen), seconds=rules.window)
        mean = sum(wish for _, wish in self._wishes) / len(self._wishes)
        # floats that should add up to a whole number may be a little over it
        wished = min(max(math.ceil(mean - 1e-9), rules.min_replicas), rules.max_replicas)
        _remember(self._wished, now, wished, seconds=rules.delay)
        highest = max(one for _, one in self._wished)
        excess = seen.num_replicas - highest
        if excess > 0 and now >= self._next_down:
            self._next_down = now + rules.delay
            return seen.num_replicas - math.ceil(excess * rules.rate)
        return max(wished, seen.num_replicas)


def _remember(kept: deque[tuple[float, _Value]], now: float, value: _Value, *, seconds: float) -> None:
    kept.append((now, value))
    while kept[0][0] < now - seconds:
        kept.popleft()
