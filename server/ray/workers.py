"""The workers of a backfill on a Ray cluster: started, and told what to write."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from embedline.client.preference import CancellationToken
from server.backfill.errors import BackfillError, Stopped
from server.backfill.job import Options
from server.backfill.servers import Served
from server.ray.room import Room
from server.ray.serving import arguments
from server.ray.worker import PROBLEM
from server.settings.ray_table import RayConfig

_POLL_SECONDS = 1.0
_MAX_DEATHS = 3  # of workers that had the same shards
_ROOM_SECONDS = 60.0  # for a place in the cluster, beside a server's start
_STOP_SECONDS = 20.0

_Answer = tuple[Sequence[int], dict[str, Any]]


class Workers:
    """Ray places those that find room, now or later, and starts one that ends again, with the work that it had."""

    def __init__(self, options: Options, config: RayConfig, token: CancellationToken) -> None:
        import ray
        from ray import cloudpickle

        from server.ray import child, worker

        for module in (child, worker):  # Ray's processes can't import them yet
            cloudpickle.register_pickle_by_value(module)
        self._settings, self._token = config.ray, token
        self._asked: dict[Any, tuple[Any, Sequence[int]]] = {}  # workers by Ray's words for their answers to come
        self._ready: list[Any] = []
        needs = f"{self._settings.num_cpus:g} CPUs and {self._settings.num_gpus:g} GPUs"
        self._room = Room(needs, self._settings.start_seconds + _ROOM_SECONDS, _free)
        made = ray.remote(
            num_cpus=self._settings.num_cpus,
            num_gpus=self._settings.num_gpus,
            max_restarts=-1,
            max_task_retries=_MAX_DEATHS - 1,
        )(worker.Worker)
        for number in range(self.size):
            place = {"resume": True, "worker": (number + 1, self.size + 1)}  # 0 of 1 is this process
            given = dataclasses.asdict(options) | place
            actor = made.remote(config.text, arguments(config), given, os.getcwd(), self._settings.start_seconds)
            self._asked[actor.start.remote()] = actor, ()

    @property
    def size(self) -> int:
        """Workers at most."""
        return self._settings.max_replicas

    def first_ready(self) -> Served:
        """The model of the first worker that is ready. Raises BackfillError."""
        while True:
            for _, described in self.answers():
                return Served(described["model"], described["dimensions"])

    def answers(self) -> Iterator[_Answer]:
        """Those of the next second: the shards that a worker was told, or none where it has started, and what it says.

        Raises BackfillError where nothing is to be hoped for."""
        import ray

        if self._token.is_cancelled:
            raise Stopped("stopped by a signal")
        found, _ = ray.wait(list(self._asked), timeout=_POLL_SECONDS) if self._asked else ([], [])
        for reference in found:
            self._room.found()
            yield self._answer(reference)
        if not found:
            self._room.check(self._is_computing)

    def tell(self, shards: Sequence[int]) -> None:
        """A worker that is free writes these."""
        actor = self._ready.pop()
        self._asked[actor.compute.remote(list(shards))] = actor, shards

    @property
    def has_free(self) -> bool:
        """Whether one has nothing to do."""
        return bool(self._ready)

    def stop(self) -> None:
        """Let those that are free end in order."""
        import ray

        ray.wait([actor.stop.remote() for actor in self._ready], timeout=_STOP_SECONDS)

    def _is_computing(self) -> bool:
        """Whether one works, or could: one that is to be started again may never find a place."""
        return bool(self._ready) or any(shards and _has_place(actor) for actor, shards in self._asked.values())

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
        self._ready.append(actor)
        return shards, figures


def _has_place(actor: Any) -> bool:
    from ray._private import state

    return bool(state.actors(actor._actor_id.hex()).get("State") == "ALIVE")


def _free() -> str:
    """What the cluster has, in words."""
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    return " and ".join(f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s are free" for kind in ("CPU", "GPU"))
