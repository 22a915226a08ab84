"""What the scheduler keeps for one ready engine: what it holds, and whether it can be trusted.

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
from collections import deque
from collections.abc import Iterable, Sequence

from batch_manager.scheduling.batches import ScheduledBatch
from engine.types import EngineLimits
from wire.vocabulary import RequestClass

MAX_FAILURES = 3  # in a row
MAX_REFUTED = 8  # of them, computed by another engine
CANARY_SECONDS = 10.0  # one small batch in so long costs nothing that could be measured
SOON_SECONDS = 1.0  # between canaries after failures, which a client's input may cause as often as it likes

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

    def fits(self, batch: ScheduledBatch) -> bool:
        """Whether it can take a batch that was packed for another engine of its model."""
        limits = self.limits
        return batch.num_tokens <= limits.max_num_tokens and batch.num_seqs <= limits.max_num_seqs

    def put(self, batch: ScheduledBatch) -> None:
        """Take note of a batch that is sent to it."""
        if batch.is_urgent and self.limits.puts_urgent_first:
            for oldest in self.lane(RequestClass.BULK)[:1]:
                oldest.passed_tokens += batch.num_tokens
        self.batches[batch.batch_id] = batch

    def take(self, batch_id: int) -> ScheduledBatch | None:
        """Take out a batch that it is done with; None where it does not hold such a batch."""
        return self.batches.pop(batch_id, None)


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

    def canary_failed(self) -> None:
        """The rows of the canary were wrong, or there were none."""
        self.loss = Loss.CANARY
