"""What the scheduler keeps for one ready engine, and how fast the engines of a model compute."""

from collections import deque
from collections.abc import Sequence

from batch_manager.batches import Batch
from batch_manager.health import Health
from engine.types import EngineLimits

_WEIGHT = 0.2  # of the newest batch: a step in speed is known to 90 % after ten batches


class Engine:
    """A ready engine and what it holds.

    model    its index in this server
    batches  by id, in the order in which they were sent; the oldest `max_computing` may be being computed
    retries  batches that failed on another engine and wait to be tried on this one
    health   whether it can be trusted
    """

    __slots__ = ("batches", "engine_id", "health", "limits", "model", "num_tokens", "retries")

    def __init__(self, engine_id: int, limits: EngineLimits, *, model: int) -> None:
        self.engine_id = engine_id
        self.limits = limits
        self.model = model
        self.batches: dict[int, Batch] = {}
        self.retries: deque[Batch] = deque()
        self.health = Health()
        self.num_tokens = 0  # of all its batches

    @property
    def num_idle_streams(self) -> int:
        """Batches that would be computed at once if they were sent now."""
        return max(0, self.limits.streams - len(self.batches))

    @property
    def load(self) -> float:
        """Seconds in which it would compute what it holds and what waits for it alone, by the rate that it measured at
        warm-up; tokens, where it did not. For comparing engines of one model, which may be GPUs of different speed."""
        num_tokens = self.num_tokens + sum(batch.num_tokens for batch in self.retries)
        return num_tokens / (self.limits.tokens_per_second * self.limits.streams or 1.0)

    @property
    def max_computing(self) -> int:
        """Batches that may be computed at the same time."""
        return self.limits.depth if self.limits.overlaps else self.limits.streams

    @property
    def newest(self) -> Batch:
        """The batch that was sent last of those it holds; there must be one."""
        return next(reversed(self.batches.values()))

    @property
    def has_room(self) -> bool:
        """Whether it may hold another batch. A suspect has its engine to itself, so that a death is its own."""
        num_batches = len(self.batches)
        if num_batches == 1 and next(iter(self.batches.values())).is_suspect:
            return False
        return num_batches < self.limits.depth

    def fits(self, batch: Batch) -> bool:
        """Whether it can take a batch that was packed for another engine of its model."""
        limits = self.limits
        return batch.num_tokens <= limits.max_num_tokens and batch.num_seqs <= limits.max_num_seqs

    def put(self, batch: Batch) -> None:
        """Take note of a batch that is sent to it."""
        self.batches[batch.batch_id] = batch
        self.num_tokens += batch.num_tokens

    def take(self, batch_id: int) -> Batch | None:
        """Take out a batch that it is done with; None where it does not hold such a batch."""
        batch = self.batches.pop(batch_id, None)
        if batch is not None:
            self.num_tokens -= batch.num_tokens
        return batch


def with_room(engines: Sequence[Engine]) -> list[Engine]:
    """Those that may get a batch now. While one of them is trusted, those that are suspected get none."""
    trusted = [engine for engine in engines if not engine.health.is_suspected]
    return [engine for engine in trusted or engines if engine.has_room]


class Rate:
    """Tokens per second of one stream of a model's engines, learned from finished batches; 0 while unknown.

    A batch runs on one stream from the moment it begins to compute, whatever the other streams do meanwhile; an engine
    with several streams computes as many times the rate, as far as its streams don't slow each other down, and where
    they do, the seconds of each batch show it.
    """

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
