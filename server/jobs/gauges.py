"""The queue's numbers for Prometheus: read from the store after a change, at most once a second."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from server.jobs.store.errors import StoreError
from server.jobs.store.signal import Signal
from server.jobs.store.store import RequestStore
from server.jobs.types import NUM_PRIORITIES, QueueCounts
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
        self._is_old = Signal()
        self._is_old.set()
        for priority in range(NUM_PRIORITIES):
            metrics.watch("embedline_jobs_queued", title, str(priority), level=partial(self._queued, priority))
        metrics.watch("embedline_jobs_oldest_age_seconds", title, level=self._oldest_age)
        metrics.watch("embedline_jobs_in_progress", title, level=lambda: self._counts.in_progress)
        metrics.watch("embedline_jobs_webhooks_pending", title, level=lambda: self._counts.webhooks_pending)
        metrics.watch("embedline_jobs_held_bytes", title, level=lambda: self._counts.held_bytes)

    def changed(self) -> None:
        """Something was added, begun or ended."""
        self._is_old.set()

    async def run(self) -> None:
        """Until cancelled."""
        await read_when_old(self._is_old, self._read, what="the queue")

    async def _read(self) -> None:
        self._counts = await self._store.counts(None)
        self._read_at = time.monotonic()

    def _queued(self, priority: int) -> float:
        return self._counts.queued[priority]

    def _oldest_age(self) -> float:
        """It grows while nothing changes."""
        age = self._counts.oldest_age
        return age + time.monotonic() - self._read_at if age else 0.0


async def read_when_old(is_old: Signal, read: Callable[[], Awaitable[None]], *, what: str) -> None:
    """Read numbers from the store after each change, with a pause between two looks. Until cancelled."""
    while True:
        await is_old.wait(SHARED_SECONDS)
        is_old.clear()
        try:
            await read()
        except StoreError as error:
            logger.error("%s of --jobs can't be counted: %s", what, error)
        await asyncio.sleep(PAUSE_SECONDS)
