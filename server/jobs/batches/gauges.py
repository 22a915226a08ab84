"""The numbers of batches for Prometheus: counted as they are saved, and those that are open read from the store."""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from server.jobs.batches.counts import counts_of, open_batches
from server.jobs.batches.state import OPEN_STATUSES, BatchState
from server.jobs.gauges import SHARED_SECONDS
from server.jobs.store.errors import StoreError
from server.jobs.store.signal import Signal
from server.jobs.store.store import DocumentStore
from wire.metrics import Recorder

PAUSE_SECONDS = 1.0  # between two looks into the store

logger = logging.getLogger("embedline.server")


class BatchGauges:
    """Call `saved` after each change of a batch."""

    def __init__(self, documents: DocumentStore, metrics: Recorder, *, title: str) -> None:
        self._documents = documents
        self._metrics = metrics
        self._open: Mapping[str, int] = dict.fromkeys(OPEN_STATUSES, 0)
        self._is_old = Signal()
        self._is_old.set()
        for status in OPEN_STATUSES:
            metrics.watch("embedline_jobs_batches_open", title, status, level=partial(self._number, status))

    def saved(self, before: BatchState, after: BatchState) -> None:
        """What this process has done of a batch; for a new one both are the same."""
        for outcome in ("completed", "failed"):
            if more := getattr(after, outcome) - getattr(before, outcome):
                self._metrics.count("embedline_jobs_batch_lines_total", outcome, by=more)
        if after.has_ended:
            self._metrics.count("embedline_jobs_batches_total", after.status)
        self._is_old.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._is_old.wait(SHARED_SECONDS)
            self._is_old.clear()
            try:
                self._open = counts_of(await open_batches(self._documents), time.time()).open
            except StoreError as error:
                logger.error("the batches of --jobs can't be counted: %s", error)
            await asyncio.sleep(PAUSE_SECONDS)

    def _number(self, status: str) -> float:
        return self._open[status]
