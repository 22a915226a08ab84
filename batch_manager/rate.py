"""How fast one stream of a model's engines computes, learned from finished batches. Knows no engines.

A batch runs on one stream from the moment it begins to compute, whatever the other streams do meanwhile; an engine
with several streams computes as many times the rate, as far as its streams don't slow each other down, and where
they do, the seconds of each batch show it.
"""

_WEIGHT = 0.2  # of the newest batch: a step in speed is known to 90 % after ten batches


class Rate:
    """Tokens per second of one stream; 0 while unknown."""

    __slots__ = ("tokens_per_second",)

    def __init__(self) -> None:
        self.tokens_per_second = 0.0

    def seed(self, tokens_per_second: float) -> None:
        """Start from what an engine measured at warm-up, unless something is known already."""
        if not self.tokens_per_second:
            self.tokens_per_second = tokens_per_second

    def observe(self, num_tokens: int, compute_seconds: float, *, max_tokens: int, is_beside: bool = False) -> None:
        """Learn from a batch that was packed under `max_tokens` and took so many seconds from when it began to compute.

        One that is less than half full shows an engine's fixed cost rather than its speed, so it
        counts only where it was faster than what is known. One that ran beside a long sequence (`is_beside`) counts
        only where it was slower: it may have been nearly done when its stream, and so its time, became its own.
        """
        if compute_seconds <= 0:
            return
        newest = num_tokens / compute_seconds
        if 2 * num_tokens < max_tokens and newest <= self.tokens_per_second:
            return
        if is_beside and newest > self.tokens_per_second:
            return
        known = self.tokens_per_second or newest
        self.tokens_per_second = known + _WEIGHT * (newest - known)
