"""`embedline backfill --ray`: workers on a Ray cluster write a job's shards, from one to as many as find room.

Plan, manifest, format and commit are the job's own: a worker writes whole parts into OUT, which all nodes share.
"""

import dataclasses
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from embedline.client.preference import CancellationToken
from server.features.backfill.errors import BackfillError, Stopped
from server.features.backfill.job import Job, Options
from server.features.backfill.servers import Served
from server.features.backfill.work import Progress
from server.features.ray.actors import PROBLEM
from server.features.ray.serving import arguments, check_version
from server.features.ray.settings import RayConfig

_SAY_SECONDS = 60.0
_MAX_DEATHS = 3  # of workers that had the same shards
_ROOM_SECONDS = 60.0  # for a place in the cluster, beside a server's start
_STOP_SECONDS = 20.0
_Answer = tuple[Sequence[int], dict[str, Any]]
_MAX_RUN = 4  # shards that a worker is told at a time: neighbours are read together


class PlaceWait:
    """Bounds how long the workers of one job may wait for places in the cluster."""

    def __init__(
        self, needs: str, seconds: float, cluster: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`needs`: of one worker. `seconds` without one are too many. `cluster` says what there is."""
        self._needs, self._seconds, self._cluster, self._clock = needs, seconds, cluster, clock
        self._goes_on_at = self._said_at = clock()

    def found(self) -> None:
        """Note that a worker has answered, or computes."""
        self._goes_on_at = self._said_at = self._clock()

    def check(self, is_computing: Callable[[], bool]) -> None:
        """Say that no worker has answered. `is_computing`: whether one with a place has work. Raises BackfillError."""
        now = self._clock()
        is_over = now - self._goes_on_at > self._seconds
        if not is_over and now - self._said_at < _SAY_SECONDS:
            return
        if is_computing():
            return self.found()
        missing = f"one needs {self._needs}, and {self._cluster()}"
        if is_over:
            raise BackfillError(
                f"no worker got ready: the Ray cluster has no room for one in {self._seconds:g} s: {missing}"
            )
        self._said_at = now
        print(f"embedline: waiting for room for a worker in the Ray cluster: {missing}", file=sys.stderr, flush=True)


class Workers:
    """The workers of one backfill. Ray starts each once there is room, and restarts one that died with its shards."""

    def __init__(self, options: Options, config: RayConfig, token: CancellationToken) -> None:
        import ray
        from ray import cloudpickle

        from server.features.ray import actors

        cloudpickle.register_pickle_by_value(actors)  # Ray's processes can't import it yet
        self._settings, self._token = config.ray, token
        self.size = self._settings.max_replicas  # the most workers
        self._asked: dict[Any, tuple[Any, Sequence[int]]] = {}  # workers by Ray's words for their answers to come
        self.free: list[Any] = []  # those that have nothing to do
        needs = f"{self._settings.num_cpus:g} CPUs and {self._settings.num_gpus:g} GPUs"
        self._place_wait = PlaceWait(needs, self._settings.start_seconds + _ROOM_SECONDS, _free)
        made = ray.remote(
            num_cpus=self._settings.num_cpus,
            num_gpus=self._settings.num_gpus,
            max_restarts=-1,
            max_task_retries=_MAX_DEATHS - 1,
        )(actors.Worker)
        for number in range(self.size):
            place = {"resume": True, "worker": (number + 1, self.size + 1)}  # 0 of 1 is this process
            given = dataclasses.asdict(options) | place
            actor = made.remote(config.text, arguments(config), given, os.getcwd(), self._settings.start_seconds)
            self._asked[actor.start.remote()] = actor, ()

    def first_ready(self) -> Served:
        """The model of the first worker that is ready. Raises BackfillError."""
        while True:
            for _, described in self.answers():
                return Served(described["model"], described["dimensions"])

    def answers(self) -> Iterator[_Answer]:
        """Wait up to a second. Yields for each worker that answered the shards it was given (none if it has just
        started), and its answer.

        Raises BackfillError where nothing is to be hoped for."""
        import ray

        if self._token.is_cancelled:
            raise Stopped("stopped by a signal")
        found, _ = ray.wait(list(self._asked), timeout=1.0) if self._asked else ([], [])
        for reference in found:
            self._place_wait.found()
            yield self._answer(reference)
        if not found:
            self._place_wait.check(self._is_computing)

    def tell(self, shards: Sequence[int]) -> None:
        """Give these shards to a free worker."""
        actor = self.free.pop()
        self._asked[actor.compute.remote(list(shards))] = actor, shards

    def stop(self) -> None:
        """Let those that are free end in order."""
        import ray

        ray.wait([actor.stop.remote() for actor in self.free], timeout=_STOP_SECONDS)

    def _is_computing(self) -> bool:
        """Whether one works, or could: one that is to be started again may never find a place."""
        return bool(self.free) or any(shards and _has_place(actor) for actor, shards in self._asked.values())

    def _answer(self, reference: Any) -> _Answer:
        import ray

        actor, shards = self._asked.pop(reference)
        try:
            figures = ray.get(reference)
        except ray.exceptions.RayError as error:
            what = f"they had parts {', '.join(map(str, shards))}" if shards else "they started"
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
            raise BackfillError(f"{_MAX_DEATHS} workers ended while {what}: {reason}") from None
        if PROBLEM in figures:
            raise BackfillError(figures[PROBLEM])
        self.free.append(actor)
        return shards, figures


def _has_place(actor: Any) -> bool:
    from ray._private import state

    return bool(state.actors(actor._actor_id.hex()).get("State") == "ALIVE")


def _free() -> str:
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    return " and ".join(f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s are free" for kind in ("CPU", "GPU"))


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
        while waiting and workers.free:
            count = max(1, min(_MAX_RUN, len(waiting) // (2 * workers.size)))  # few at the end: all end together
            workers.tell([waiting.popleft() for _ in range(count)])
        for shards, figures in workers.answers():
            if shards:
                progress.computed(figures["rows"], num_tokens=figures["tokens"], num_truncated=figures["truncated"])
                progress.failed(figures["failed"])
                num_left -= len(shards)
