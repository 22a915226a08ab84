"""`embedline backfill --ray`: workers on a Ray cluster write a job's shards, from one to as many as find room.

Plan, manifest, format and commit are the job's own: a worker writes whole parts into OUT, which all nodes share.
"""

import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import closing

from embedline.client.preference import CancellationToken
from server.backfill.job import Job, Options
from server.backfill.progress import Progress
from server.ray.serving import check_version
from server.ray.workers import Workers
from server.settings.ray_table import RayConfig

_MAX_RUN = 4  # shards that a worker is told at a time: neighbours are read together


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
            code = job.finish(plan, lambda todo, progress: _hand_out(todo, progress, workers))
            workers.stop()
            return code
        finally:
            ray.shutdown()  # ends what is left of the workers, and they their servers


def _hand_out(todo: Sequence[int], progress: Progress, workers: Workers) -> None:
    """Shards go to whoever is free, until all are written. Raises BackfillError."""
    waiting, num_left = deque(todo), len(todo)
    while num_left:
        while waiting and workers.has_free:
            count = max(1, min(_MAX_RUN, len(waiting) // (2 * workers.size)))  # few at the end: all end together
            workers.tell([waiting.popleft() for _ in range(count)])
        for shards, figures in workers.answers():
            if shards:
                progress.computed(figures["rows"], num_tokens=figures["tokens"], num_truncated=figures["truncated"])
                progress.failed(figures["failed"])
                num_left -= len(shards)
