"""The numbers of the queue and of batches for Prometheus: read from the store after a change, at most once a second.
What this process does of batches is counted as they are saved.

How many batches are open, and how far they have come, is what `GET /jobs` tells too.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from server.features.jobs.batches.batches import open_batches
from server.features.jobs.batches.state import OPEN_STATUSES, SERVER_FAULT, BatchState, state_of
from server.features.jobs.store.store import Signal, Store, StoreError
from server.features.jobs.types import NUM_PRIORITIES, Document, QueueCounts
from wire.metrics import Recorder

PAUSE_SECONDS = 1.0
SHARED_SECONDS = 15.0  # what other servers do with a store that they share is seen after so long
logger = logging.getLogger("embedline.server")


class Gauges:
    """Call `changed` when a request was added, begun or ended, and `saved` after each change of a batch."""

    def __init__(self, store: Store, metrics: Recorder, *, title: str) -> None:
        self._store = store
        self._metrics = metrics
        self._queue = QueueCounts((0,) * NUM_PRIORITIES, 0.0, 0, 0, 0, 0)
        self._queue_read_at = time.monotonic()
        self._queue_changed = Signal()
        self._open_batches = dict.fromkeys(OPEN_STATUSES, 0)
        self._batches_changed = Signal()
        metrics.count("embedline_jobs_batch_faults_total", by=0)  # it is there before the first
        metrics.watch("embedline_jobs_oldest_age_seconds", title, level=self._oldest_age)
        metrics.watch("embedline_jobs_in_progress", title, level=lambda: self._queue.in_progress)
        metrics.watch("embedline_jobs_webhooks_pending", title, level=lambda: self._queue.webhooks_pending)
        metrics.watch("embedline_jobs_held_bytes", title, level=lambda: self._queue.held_bytes)
        for priority in range(NUM_PRIORITIES):
            metrics.watch("embedline_jobs_queued", title, str(priority), level=partial(self._queued, priority))
        for status in OPEN_STATUSES:
            metrics.watch("embedline_jobs_batches_open", title, status, level=partial(self._num_open, status))

    def changed(self) -> None:
        self._queue_changed.set()

    def saved(self, before: BatchState, after: BatchState) -> None:
        """Counts what this process has done of a batch; for a new one both are the same."""
        for outcome in ("completed", "failed"):
            if (more := getattr(after, outcome) - getattr(before, outcome)) > 0:  # less where it begins anew
                self._metrics.count("embedline_jobs_batch_lines_total", outcome, by=more)
        if after.has_ended:
            self._metrics.count("embedline_jobs_batches_total", after.status)
            if any(error.code == SERVER_FAULT for error in after.errors):
                self._metrics.count("embedline_jobs_batch_faults_total")
        self._batches_changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_read_when_changed(self._queue_changed, self._read_queue, what="the queue"))
            group.create_task(_read_when_changed(self._batches_changed, self._read_batches, what="the batches"))

    async def _read_queue(self) -> None:
        self._queue = await self._store.requests.counts(None)
        self._queue_read_at = time.monotonic()

    async def _read_batches(self) -> None:
        self._open_batches = counts_of(await open_batches(self._store.documents), time.time())["open"]

    def _queued(self, priority: int) -> float:
        return self._queue.queued[priority]

    def _oldest_age(self) -> float:
        """It grows while nothing changes."""
        age = self._queue.oldest_age
        return age + time.monotonic() - self._queue_read_at if age else 0.0

    def _num_open(self, status: str) -> float:
        return self._open_batches[status]


async def _read_when_changed(changed: Signal, read: Callable[[], Awaitable[None]], *, what: str) -> None:
    """Reads at once, then after each change, with a pause between two looks. Until cancelled."""
    while True:
        changed.clear()
        try:
            await read()
        except StoreError as error:
            logger.error("%s of --jobs can't be counted: %s", what, error)
        await asyncio.sleep(PAUSE_SECONDS)
        await changed.wait_for(SHARED_SECONDS)


def counts_of(batches: Iterable[Document], now: float) -> dict[str, Any]:
    """The counts of open batches, from their documents. Ages are seconds, 0 where there is none; `left` are lines
    without an answer on the disk."""
    states = [state_of(document) for document in batches]
    completed, failed = sum(state.completed for state in states), sum(state.failed for state in states)
    left = sum(state.total for state in states) - completed - failed
    return {
        "open": {status: sum(state.status == status for state in states) for status in OPEN_STATUSES},
        "oldest_age": max((max(0.0, now - state.created_at) for state in states), default=0.0),
        "lines": {"completed": completed, "failed": failed, "left": left},
    }
