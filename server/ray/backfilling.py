"""`embedline backfill --ray`: workers on a Ray cluster write a job's shards, from one to as many as find room.

Plan, manifest, format and commit are the job's own: a worker writes whole parts into OUT, which all nodes share.
"""

import logging
import os
import signal
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing

from embedline.client.preference import CancellationToken
from server.backfill.errors import BackfillError
from server.backfill.job import Job, Options
from server.backfill.plan import Plan
from server.backfill.progress import Progress
from server.ray.serving import check_version
from server.ray.workers import Event, Workers
from server.settings.ray_table import RayConfig

_MAX_RUN = 4  # shards that a worker is told at a time: neighbours are read together
_MAX_DEATHS = 3  # of workers that had the same shard


def run(options: Options, config: RayConfig) -> int:
    """The exit code: 1 where more rows are bad than may be. A signal stops it. Raises BackfillError, SettingsError."""
    check_version()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read as Ray is imported: no report to its makers
    import ray

    token = CancellationToken()
    with closing(Job(options)) as job:
        ray.init(logging_level=logging.WARNING, log_to_driver=False, include_dashboard=False)
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: token.cancel())  # Ray has set its own
            workers = Workers(options, config, token)
            plan = job.begin(workers.first_ready())
            code = job.finish(plan, lambda todo, progress: _Handing(job, plan, todo, progress, workers).run())
            workers.stop()
            return code
        finally:
            ray.shutdown()  # ends what is left of the workers, and they their servers


class _Handing:
    """Hands the shards to whoever is free, until all are written."""

    def __init__(self, job: Job, plan: Plan, todo: Sequence[int], progress: Progress, workers: Workers) -> None:
        self._job, self._plan, self._progress, self._workers = job, plan, progress, workers
        self._waiting = deque(todo)
        self._num_left = len(todo)  # those that are being written too
        self._deaths: Counter[int] = Counter()

    def run(self) -> None:
        """Raises BackfillError."""
        while self._num_left:
            while self._waiting and self._workers.has_free:
                self._workers.tell(self._next())
            for event in self._workers.events():
                if event.shards:
                    self._heard(event)

    def _next(self) -> list[int]:
        """Few at the end, so that all workers end together."""
        count = max(1, min(_MAX_RUN, len(self._waiting) // (2 * self._workers.size)))
        return [self._waiting.popleft() for _ in range(count)]

    def _heard(self, event: Event) -> None:
        if event.answer is not None:
            figures = event.answer
            self._progress.computed(figures["rows"], num_tokens=figures["tokens"], num_truncated=figures["truncated"])
            self._progress.failed(figures["failed"])
            self._num_left -= len(event.shards)
            return
        done = self._job.done(self._plan, event.shards)
        self._progress.computed(sum(counts.num_rows for counts in done.values()))
        self._progress.failed(sum(counts.num_failed for counts in done.values()))
        self._num_left -= len(done)
        lost = [shard for shard in event.shards if shard not in done]
        self._deaths.update(lost)
        for shard in lost:
            if self._deaths[shard] >= _MAX_DEATHS:
                raise BackfillError(f"{_MAX_DEATHS} workers ended while they had part {shard}: {event.reason}")
        self._waiting.extendleft(reversed(lost))
