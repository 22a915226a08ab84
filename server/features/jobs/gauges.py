"""The numbers of the queue and of batches for Prometheus: read from the store after a change, at most once a second.
What this process does of batches is counted as they are saved.

How many batches are open, and how far they have come, is what `GET /jobs` tells too.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from server.features.jobs.batches.batches import MAX_OPEN
from server.features.jobs.batches.state import KIND, OPEN, OPEN_STATUSES, SERVER_FAULT, BatchState, state_of
from server.features.jobs.store.store import DocumentStore, RequestStore, Signal, StoreError
from server.features.jobs.types import NUM_PRIORITIES, Document, QueueCounts
from wire.metrics import Recorder

PAUSE_SECONDS = 1.0
SHARED_SECONDS = 15.0  # what other servers do with a store that they share is seen after so long
logger = logging.getLogger("embedline.server")


class QueueGauges:
    """Levels of this process; `changed` says that they are old."""

    def __init__(self, store: RequestStore, metrics: Recorder, *, title: str) -> None:
        self._store = store
        self._counts = QueueCounts((0,) * NUM_PRIORITIES, 0.0, 0, 0, 0, 0)
        self._read_at = time.monotonic()
        self._changed = Signal()
        self._changed.set()
        for priority in range(NUM_PRIORITIES):
            metrics.watch("embedline_jobs_queued", title, str(priority), level=partial(self._queued, priority))
        metrics.watch("embedline_jobs_oldest_age_seconds", title, level=self._oldest_age)
        metrics.watch("embedline_jobs_in_progress", title, level=lambda: self._counts.in_progress)
        metrics.watch("embedline_jobs_webhooks_pending", title, level=lambda: self._counts.webhooks_pending)
        metrics.watch("embedline_jobs_held_bytes", title, level=lambda: self._counts.held_bytes)

    def changed(self) -> None:
        """Note that something was added, begun or ended."""
        self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        await read_when_changed(self._changed, self._read, what="the queue")

    async def _read(self) -> None:
        self._counts = await self._store.counts(None)
        self._read_at = time.monotonic()

    def _queued(self, priority: int) -> float:
        return self._counts.queued[priority]

    def _oldest_age(self) -> float:
        """It grows while nothing changes."""
        age = self._counts.oldest_age
        return age + time.monotonic() - self._read_at if age else 0.0


class BatchGauges:
    """Call `saved` after each change of a batch."""

    def __init__(self, documents: DocumentStore, metrics: Recorder, *, title: str) -> None:
        self._documents = documents
        self._metrics = metrics
        self._open: Mapping[str, int] = dict.fromkeys(OPEN_STATUSES, 0)
        self._changed = Signal()
        self._changed.set()
        metrics.count("embedline_jobs_batch_faults_total", by=0)  # it is there before the first
        for status in OPEN_STATUSES:
            metrics.watch("embedline_jobs_batches_open", title, status, level=partial(self._number, status))

    def saved(self, before: BatchState, after: BatchState) -> None:
        """Counts what this process has done of a batch; for a new one both are the same."""
        for outcome in ("completed", "failed"):
            if (more := getattr(after, outcome) - getattr(before, outcome)) > 0:  # less where it begins anew
                self._metrics.count("embedline_jobs_batch_lines_total", outcome, by=more)
        if after.has_ended:
            self._metrics.count("embedline_jobs_batches_total", after.status)
            if any(error.code == SERVER_FAULT for error in after.errors):
                self._metrics.count("embedline_jobs_batch_faults_total")
        self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        await read_when_changed(self._changed, self._read, what="the batches")

    async def _read(self) -> None:
        self._open = counts_of(await open_batches(self._documents), time.time()).open

    def _number(self, status: str) -> float:
        return self._open[status]


async def read_when_changed(changed: Signal, read: Callable[[], Awaitable[None]], *, what: str) -> None:
    """Read numbers from the store after each change, with a pause between two looks. Until cancelled."""
    while True:
        await changed.wait(SHARED_SECONDS)
        changed.clear()
        try:
            await read()
        except StoreError as error:
            logger.error("%s of --jobs can't be counted: %s", what, error)
        await asyncio.sleep(PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Lines:
    """The numbers of lines of the batches that run. `left` are those without an answer on the disk."""

    completed: int
    failed: int
    left: int


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Batches that have not ended. Each of their statuses is in `open`; ages are seconds, 0 where there is none."""

    open: dict[str, int]
    oldest_age: float
    lines: Lines


def counts_of(batches: Iterable[Document], now: float) -> BatchCounts:
    """The counts of open batches, from their documents."""
    states = [state_of(document) for document in batches]
    completed, failed = sum(state.completed for state in states), sum(state.failed for state in states)
    return BatchCounts(
        {status: sum(state.status == status for state in states) for status in OPEN_STATUSES},
        max((max(0.0, now - state.created_at) for state in states), default=0.0),
        Lines(completed, failed, sum(state.total for state in states) - completed - failed),
    )


async def open_batches(documents: DocumentStore) -> list[Document]:
    """The open batches of all owners, the oldest first."""
    return await documents.in_state(KIND, OPEN, limit=MAX_OPEN)
