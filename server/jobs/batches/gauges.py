"""The numbers of batches for Prometheus: counted as they are saved, and those that are open read from the store."""

import time
from collections.abc import Mapping
from functools import partial

from server.jobs.batches.counts import counts_of, open_batches
from server.jobs.batches.state import OPEN_STATUSES, SERVER_FAULT, BatchState
from server.jobs.gauges import read_when_old
from server.jobs.store.signal import Signal
from server.jobs.store.store import DocumentStore
from wire.metrics import Recorder


class BatchGauges:
    """Call `saved` after each change of a batch."""

    def __init__(self, documents: DocumentStore, metrics: Recorder, *, title: str) -> None:
        self._documents = documents
        self._metrics = metrics
        self._open: Mapping[str, int] = dict.fromkeys(OPEN_STATUSES, 0)
        self._is_old = Signal()
        self._is_old.set()
        metrics.count("embedline_jobs_batch_faults_total", by=0)  # it is there before the first
        for status in OPEN_STATUSES:
            metrics.watch("embedline_jobs_batches_open", title, status, level=partial(self._number, status))

    def saved(self, before: BatchState, after: BatchState) -> None:
        """What this process has done of a batch; for a new one both are the same."""
        for outcome in ("completed", "failed"):
            if (more := getattr(after, outcome) - getattr(before, outcome)) > 0:  # less where it begins anew
                self._metrics.count("embedline_jobs_batch_lines_total", outcome, by=more)
        if after.has_ended:
            self._metrics.count("embedline_jobs_batches_total", after.status)
            if any(error.code == SERVER_FAULT for error in after.errors):
                self._metrics.count("embedline_jobs_batch_faults_total")
        self._is_old.set()

    async def run(self) -> None:
        """Until cancelled."""
        await read_when_old(self._is_old, self._read, what="the batches")

    async def _read(self) -> None:
        self._open = counts_of(await open_batches(self._documents), time.time()).open

    def _number(self, status: str) -> float:
        return self._open[status]
