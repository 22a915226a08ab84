"""What the scheduler keeps for one ready engine: what it holds, and whether it can be trusted; and how large the
batches of a model should be, by how fast its engines compute (`Sizes`).

Each engine has a circuit breaker (`Health`), which says whether it can be trusted. An engine that fails at once is
always idle, so it would draw all the work. Therefore one that fails MAX_FAILURES batches in a row is suspected: it gets
a canary, a batch whose rows it knows from its start (`engine.selftest.warmup`), and nothing else while an engine of its
model is trusted. If it passes, it is trusted again. If it does not, it is lost, and its process is restarted. An engine
may also pass each canary and fail all else. Batches show this that failed on it and were computed by another engine:
after MAX_REFUTED of them without one success of its own it is lost too. An input that fails everywhere shows nothing,
so no client can have an engine restarted by sending such inputs.

Rows may be wrong where nothing fails. So an engine that computes also gets a canary every CANARY_SECONDS, and soon
after a batch that failed: what fails now and then may give wrong rows meanwhile.
"""

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from batch_manager.messages import Policy
from batch_manager.scheduling.batches import ScheduledBatch, Slice
from engine.types import EngineLimits
from wire.records import light_dataclass
from wire.vocabulary import RequestClass

MAX_FAILURES = 3  # in a row
MAX_REFUTED = 8  # of them, computed by another engine
CANARY_SECONDS = 10.0  # one small batch in so long costs little: a slow engine's is of a few tokens
SOON_SECONDS = 1.0  # between canaries after failures, which a client's input may cause as often as it likes
_WEIGHT = 0.2  # of the newest batch: a step in speed is known to 90 % after ten batches
_LEAST_BEYOND_FIXED = 0.125  # of a batch's seconds
# Simulated with the costs of an H100 and 50 queries a second (tests/batch_manager/test_simulation.py): an 8B model in
# FP8 (3.4 ms a batch) keeps 0.86 of its bulk and answers 99 % of the queries within 46 ms; without these two 0.59 to
# 0.62, within 19 ms. One of 0.6B (0.9 ms) hardly differs.
_JOINED_FIXED_COSTS, _MIXED_FIXED_COSTS = 2, 9
# An engine is within 5 % of its best speed at its target; by the cost that every batch has, at an eighth of it about
# within 30 %.
_MIN_PART_OF_TARGET = 8
# Where batches overlap, queries beside bulk are sent in so many times shorter batches: each query is then answered soon
# after it is computed, and not with the last of a batch.
_NUM_URGENT_PARTS = 3

Lane = RequestClass | None  # of an engine: its urgent batches (INTERACTIVE), its others (BULK), or all of them (None)


class ReadyEngine:
    """A ready engine and what it holds.

    model    its index in this server
    batches  by id, in the order in which they were sent
    retries  batches that failed on another engine and wait to be tried on this one
    health   whether it can be trusted
    """

    __slots__ = ("batches", "engine_id", "health", "limits", "model", "retries")

    def __init__(self, engine_id: int, limits: EngineLimits, *, model: int) -> None:
        self.engine_id = engine_id
        self.limits = limits
        self.model = model
        self.batches: dict[int, ScheduledBatch] = {}
        self.retries: deque[ScheduledBatch] = deque()
        self.health = Health()

    @property
    def num_idle_streams(self) -> int:
        """Batches that would be computed at once if they were sent now."""
        return max(0, self.limits.streams - len(self.batches))

    def load(self, lane: Lane) -> float:
        """Seconds in which it would compute what it holds and what waits for it alone in a lane, by the rate that it
        measured at warm-up; tokens, where it did not. For comparing engines of one model, which may be GPUs of
        different speed."""
        if not self.batches and not self.retries:
            return 0.0
        num_tokens = sum(batch.num_tokens for batch in (*self.lane(lane), *in_lane(self.retries, lane)))
        return num_tokens / (self.limits.tokens_per_second * self.limits.streams or 1.0)

    @property
    def computing(self) -> list[ScheduledBatch]:
        """Batches that may be being computed: all where they overlap, else the oldest ones of each lane."""
        if self.limits.overlaps:
            return self.lane(None)
        lanes: tuple[Lane, ...] = tuple(RequestClass) if self.limits.puts_urgent_first else (None,)
        return [batch for lane in lanes for batch in self.lane(lane)[: self.limits.streams]]

    def lane(self, lane: Lane) -> list[ScheduledBatch]:
        """The batches that it holds in this lane, in the order in which they were sent; all where it has no lanes."""
        if lane is None or not self.limits.puts_urgent_first:
            return list(self.batches.values())
        return in_lane(self.batches.values(), lane)

    def has_room(self, lane: Lane) -> bool:
        """Whether it may hold another batch in this lane.

        A suspect has its engine to itself, so that a death is its own.
        """
        batches = self.batches
        if len(batches) == 1 and next(iter(batches.values())).is_suspect:
            return False
        return len(batches) < self.limits.depth or len(self.lane(lane)) < self.limits.depth

    def owes_bulk(self, bulk_share: float) -> bool:
        """Whether urgent batches have passed its oldest other batch for so long that it got less than this share."""
        oldest = next(iter(self.lane(RequestClass.BULK)), None)
        return oldest is not None and bulk_share * oldest.passed_tokens >= (1 - bulk_share) * oldest.num_tokens

    def put(self, batch: ScheduledBatch) -> None:
        """Take note of a batch that is sent to it."""
        if batch.is_urgent and self.limits.puts_urgent_first:
            for oldest in self.lane(RequestClass.BULK)[:1]:
                oldest.passed_tokens += batch.num_tokens
        self.batches[batch.batch_id] = batch

    def take(self, batch_id: int) -> ScheduledBatch | None:
        """Take out a batch that it is done with; None where it does not hold such a batch."""
        return self.batches.pop(batch_id, None)


def fits(limits: EngineLimits, batch: ScheduledBatch) -> bool:
    """Whether an engine with these limits can take a batch that was packed for another."""
    is_small = batch.num_tokens <= limits.max_num_tokens and batch.sent_tokens <= limits.max_sent_tokens
    return is_small and batch.num_seqs <= limits.max_num_seqs


def in_lane(batches: Iterable[ScheduledBatch], lane: Lane) -> list[ScheduledBatch]:
    """The batches that belong to this lane."""
    return [batch for batch in batches if lane is None or batch.is_urgent == (lane == RequestClass.INTERACTIVE)]


def with_room(engines: Sequence[ReadyEngine], lane: Lane) -> list[ReadyEngine]:
    """The engines that may get a batch for this lane now. While one of them is trusted, suspected ones get none."""
    trusted = [engine for engine in engines if not engine.health.is_suspected]
    return [engine for engine in trusted or engines if engine.has_room(lane)]


def claims(engine: ReadyEngine, lane: Lane) -> tuple[bool, float, float, int]:
    """Smaller for an engine that should rather get the next batch for a lane."""
    return not engine.num_idle_streams, engine.load(lane), engine.load(None), len(engine.batches)


class Loss(enum.StrEnum):
    """Why an engine is given up although its process runs."""

    CANARY = "canary"  # the rows of the canary were wrong, or there were none
    REFUTED = "refuted"  # what it failed on, others computed


class Health:
    """The scheduler's record of one engine's soundness.

    num_failures  batches in a row that failed
    is_suspected  it gets nothing but a canary while another engine is trusted
    loss          why it must be restarted; None = it need not be
    """

    __slots__ = ("_checked_at", "_is_due", "_is_probed", "_num_refuted", "is_suspected", "loss", "num_failures")

    def __init__(self) -> None:
        self.num_failures = 0
        self.is_suspected = False
        self.loss: Loss | None = None
        self._num_refuted = 0  # failures that other engines have shown to be its own
        self._is_probed = False  # a canary is in it
        self._is_due = False  # it is time for a canary
        self._checked_at: float | None = (
            None  # when the last canary passed; None = it has not computed since it started
        )

    @property
    def wants_canary(self) -> bool:
        """Whether a canary is the next batch that it should get."""
        return (self.is_suspected or self._is_due) and not self._is_probed

    def computed(self, now: float) -> None:
        """The engine gave the rows of a batch."""
        self.num_failures = self._num_refuted = 0
        if self._checked_at is None:
            self._checked_at = now
        self._is_due |= now - self._checked_at >= CANARY_SECONDS

    def failed(self, now: float) -> None:
        """The engine gave no rows for a batch."""
        self.num_failures += 1
        self._is_due |= self._checked_at is not None and now - self._checked_at >= SOON_SECONDS
        if self.num_failures >= MAX_FAILURES:
            self.is_suspected = True

    def refuted(self) -> None:
        """A batch on which it failed was computed by another engine."""
        self._num_refuted += 1
        if self._num_refuted >= MAX_REFUTED:
            self.loss = Loss.REFUTED

    def probed(self) -> None:
        """A canary was sent to it."""
        self._is_probed = True
        self._is_due = False

    def canary_passed(self, now: float) -> None:
        """The rows were what they should be."""
        self._is_probed = self._is_due = self.is_suspected = False
        self.num_failures = 0
        self._checked_at = now


@light_dataclass(frozen=True, slots=True)
class Budget:
    """How large the next batch of one engine may be: by choice, and at all."""

    max_tokens: int
    max_joined: int  # tokens of a batch up to which work of the other class joins it
    group_tokens: int  # of a batch that ends in a group: sequences that share much with the one before
    limits: EngineLimits

    def last_allowed(self, slice_: Slice, batch: ScheduledBatch) -> int:
        """One past the last sequence of the slice up to which the batch may have as many sequences, and sent tokens."""
        stop = min(slice_.stop, slice_.start + self.limits.max_num_seqs - batch.num_seqs)
        if not slice_.request.shared and batch.sent_tokens == batch.num_tokens:
            return stop
        cu_seqlens, room = slice_.request.cu_seqlens, self.limits.max_sent_tokens - batch.sent_tokens
        return bisect_right(cu_seqlens, cu_seqlens[slice_.start] + room, slice_.start, stop + 1) - 1

    def sealed(self, waiting_tokens: int) -> int:
        """`max_tokens`, or the largest bucket below where what waits fills it: beyond an edge, tokens are dear."""
        if waiting_tokens < self.max_tokens:
            return self.max_tokens
        return max((edge for edge in self.limits.token_buckets if edge <= self.max_tokens), default=self.max_tokens)


class Rate:
    """Tokens per second of one stream of a model's engines, learned from finished batches; 0 while unknown.

    A batch runs on one stream from the moment it begins to compute, whatever the other streams do meanwhile; an engine
    with several streams computes as many times the rate, as far as its streams don't slow each other down, and where
    they do, the seconds of each batch show it.

    How large a batch may be is told by its seconds beyond those that every batch costs (`fixed_seconds`, measured at
    warm-up). By the plain rate a small batch would look slow for its tokens, the next would be made smaller, and on an
    engine whose every batch takes longer than it should, none would ever be large.
    """

    __slots__ = ("beyond_fixed", "fixed_seconds", "tokens_per_second")

    def __init__(self) -> None:
        self.tokens_per_second = 0.0
        self.fixed_seconds = 0.0
        self.beyond_fixed = 0.0  # tokens per second of what a batch takes beyond `fixed_seconds`

    def seed(self, tokens_per_second: float, fixed_seconds: float = 0.0) -> None:
        """Start from what an engine measured at warm-up, unless something is known already."""
        if not self.tokens_per_second:
            self.tokens_per_second = tokens_per_second
            self.fixed_seconds = fixed_seconds

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
        # a batch that was quicker than the fixed cost was found to be took little beyond it, not nothing
        beyond_fixed = num_tokens / max(compute_seconds - self.fixed_seconds, _LEAST_BEYOND_FIXED * compute_seconds)
        self.tokens_per_second = _nearer(self.tokens_per_second, newest)
        self.beyond_fixed = _nearer(self.beyond_fixed, beyond_fixed)

    def tokens_in(self, seconds: float) -> int:
        """The tokens of a batch that takes so long, or twice its fixed cost if that is longer:
        of one that kept to less than that cost, hardly anything would be left."""
        return self.tokens_beyond_fixed(max(seconds - self.fixed_seconds, self.fixed_seconds))

    def tokens_beyond_fixed(self, seconds: float) -> int:
        """The tokens that make a batch so much longer."""
        return int((self.beyond_fixed or self.tokens_per_second) * seconds)


def _nearer(known: float, newest: float) -> float:
    """A moving mean; 0 = nothing is known."""
    return known + _WEIGHT * (newest - known) if known else newest


class Sizes:
    """Sizes of the batches of one model, by its policy and the rate that its engines have now."""

    def __init__(self, policy: Policy, rate: Rate) -> None:
        self._policy = policy
        self._rate = rate

    def budget(self, limits: EngineLimits, max_tokens: int, *, lane: Lane, group_tokens: int) -> Budget:
        """The budget for a lane. Where batches don't overlap, some bulk joins an urgent batch, since a small one has
        the same cost: as much as takes twice that cost."""
        if lane is None:
            max_joined = max_tokens
        elif lane == RequestClass.INTERACTIVE and not limits.overlaps:
            joined = self._rate.tokens_beyond_fixed(_JOINED_FIXED_COSTS * self._rate.fixed_seconds)
            max_joined = min(max_tokens, max(self.min_tokens(limits), joined))
        else:
            max_joined = 0
        return Budget(max_tokens, max_joined, group_tokens, limits)

    def group_tokens(self, limits: EngineLimits) -> int:
        """The most unique tokens of a batch that ends in a group; never more than the operator lets a batch have."""
        return min(limits.group_tokens, self._policy.max_batch_tokens or limits.group_tokens)

    def max_tokens_of(self, lane: Lane, limits: EngineLimits, *, is_mixed: bool) -> int:
        """The most tokens for this lane, by choice. `is_mixed`: bulk waits while interactive work is about."""
        if is_mixed and limits.overlaps and lane == RequestClass.INTERACTIVE:
            return self.max_tokens(limits, is_mixed=True, num_parts=_NUM_URGENT_PARTS)
        if is_mixed and limits.overlaps and lane == RequestClass.BULK:
            return self.max_tokens(limits, is_mixed=False)  # urgent batches wait for a part of it, however large it is
        return self.max_tokens(limits, is_mixed=is_mixed)

    def max_tokens(self, limits: EngineLimits, *, is_mixed: bool, num_parts: int = 1) -> int:
        """The most tokens for this engine, by choice: as many as it gains by, and as few as are computed in time."""
        max_tokens = self._policy.max_batch_tokens or limits.target_num_tokens or limits.max_num_tokens
        if self._rate.tokens_per_second:
            seconds = self._mixed_seconds(limits) if is_mixed else limits.max_batch_seconds
            in_time = self._rate.tokens_in(seconds) // num_parts
            max_tokens = min(max_tokens, max(self.min_tokens(limits), in_time))
        return min(max_tokens, limits.max_num_tokens)

    def _mixed_seconds(self, limits: EngineLimits) -> float:
        """Seconds of a batch beside queries. Each query costs the engine a batch; where that is much, longer ones of
        bulk make up for it, but none longer than bulk has without queries."""
        longer = min(_MIXED_FIXED_COSTS * self._rate.fixed_seconds, limits.max_batch_seconds)
        return max(limits.max_batch_seconds_mixed, longer)

    def min_tokens(self, limits: EngineLimits) -> int:
        """How small batches are made at most, be it to keep to a time or to share work out."""
        known = limits.target_num_tokens // _MIN_PART_OF_TARGET
        return min(known, self._policy.min_batch_tokens) if known else self._policy.min_batch_tokens


def split_evenly(num_tokens: int, num_idle: int, *, least: int, most: int) -> int:
    """The tokens that one stream takes of those waiting so that, where several idle, all are done soonest."""
    return min(most, max(least, -(-num_tokens // num_idle)))
