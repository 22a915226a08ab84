"""Whether an engine can be trusted: a circuit breaker for each.

An engine that fails at once is always idle, so it would draw all the work. Therefore one that fails MAX_FAILURES
batches in a row is suspected: it gets a canary, a batch whose rows it knows from its start (`engine.selftest.warmup`),
and nothing else while an engine of its model is trusted. If it passes, it is trusted again. If it does not, it is lost,
and its process is restarted. An engine may also pass each canary and fail all else. Batches show this that failed on it
and were computed by another engine: after MAX_REFUTED of them without one success of its own it is lost too. An input
that fails everywhere shows nothing, so no client can have an engine restarted by sending such inputs.

Rows may be wrong where nothing fails. So an engine that computes also gets a canary every CANARY_SECONDS, and soon
after a batch that failed: what fails now and then may give wrong rows meanwhile.
"""

import enum

MAX_FAILURES = 3  # in a row
MAX_REFUTED = 8  # of them, computed by another engine
CANARY_SECONDS = 10.0  # one small batch in so long costs nothing that could be measured
SOON_SECONDS = 1.0  # between canaries after failures, which a client's input may cause as often as it likes


class Loss(enum.StrEnum):
    """Why an engine is given up although its process runs."""

    CANARY = "canary"  # the rows of the canary were wrong, or there were none
    REFUTED = "refuted"  # what it failed on, others computed


class Health:
    """What the scheduler knows of one engine's soundness.

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
        """It gave the rows of a batch."""
        self.num_failures = self._num_refuted = 0
        if self._checked_at is None:
            self._checked_at = now
        self._is_due |= now - self._checked_at >= CANARY_SECONDS

    def failed(self, now: float) -> None:
        """It gave no rows for a batch."""
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
        """They were not, or did not come."""
        self.loss = Loss.CANARY
