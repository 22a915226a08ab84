"""The workers of a backfill on a Ray cluster: started, told what to write, and started again where they end."""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from embedline.client.preference import CancellationToken
from server.backfill.errors import BackfillError, Stopped
from server.backfill.job import Options
from server.backfill.servers import Served
from server.ray.serving import arguments
from server.ray.worker import PROBLEM
from server.settings.ray_table import RayConfig

_POLL_SECONDS = 1.0
_MAX_FAILED = 3  # starts, one after the other
_ROOM_SECONDS = 60.0  # for a place in the cluster, beside a server's start
_STOP_SECONDS = 20.0


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """What a worker says, or that it has ended."""

    number: int
    shards: Sequence[int]  # that it was told; none = it has started
    answer: dict[str, Any] | None  # None = it has ended
    reason: str = ""  # for that


class Workers:
    """The workers, by number. Ray places those that find room, now or later; one that ends gets a successor."""

    def __init__(self, options: Options, config: RayConfig, token: CancellationToken) -> None:
        from ray import cloudpickle

        from server.ray import child, worker

        for module in (child, worker):  # Ray's processes can't import them yet
            cloudpickle.register_pickle_by_value(module)
        self._settings, self._config, self._token = config.ray, config, token
        self._options = dataclasses.asdict(options) | {"resume": True}
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, tuple[int, Sequence[int]]] = {}  # by Ray's words for an answer to come
        self._ready: list[int] = []
        self._num_failed = 0  # starts, since the last answer
        self._heard_at = time.monotonic()
        for number in range(self.size):
            self._start(number)

    @property
    def size(self) -> int:
        """Workers at most."""
        return self._settings.max_replicas

    def first_ready(self) -> Served:
        """The model of the first worker that is ready. Raises BackfillError."""
        while True:
            for event in self.events():
                if event.answer is not None:
                    return Served(event.answer["model"], event.answer["dimensions"])

    def events(self) -> Iterator[Event]:
        """What has happened within a second. Raises BackfillError where nothing is to be hoped for."""
        import ray

        if self._token.is_cancelled:
            raise Stopped("stopped by a signal")
        found, _ = ray.wait(list(self._asked), timeout=_POLL_SECONDS) if self._asked else ([], [])
        for answer in found:
            event = self._event(answer)
            self._heard_at = time.monotonic()
            if event.answer is None:
                self._start(event.number)
            else:
                self._num_failed = 0
                self._ready.append(event.number)
            yield event
        has_work = self._ready or any(shards for _, shards in self._asked.values())
        if not has_work and time.monotonic() - self._heard_at > self._settings.start_seconds + _ROOM_SECONDS:
            raise BackfillError("no worker got ready: the Ray cluster has no room for one")

    def tell(self, shards: Sequence[int]) -> None:
        """A worker that is free writes these."""
        number = self._ready.pop()
        self._asked[self._actors[number].compute.remote(list(shards))] = number, shards

    @property
    def has_free(self) -> bool:
        """Whether one has nothing to do."""
        return bool(self._ready)

    def stop(self) -> None:
        """Let those that are free end in order."""
        import ray

        ray.wait([self._actors[number].stop.remote() for number in self._ready], timeout=_STOP_SECONDS)

    def _start(self, number: int) -> None:
        import ray

        from server.ray.worker import Worker

        settings, place = self._settings, (number + 1, self.size + 1)  # 0 of 1 is this process
        actor = ray.remote(num_cpus=settings.num_cpus, num_gpus=settings.num_gpus)(Worker).remote(
            self._config.text, arguments(self._config), {**self._options, "worker": place}, os.getcwd()
        )
        self._actors[number] = actor
        self._asked[actor.start.remote(settings.start_seconds)] = number, ()

    def _event(self, answer: Any) -> Event:
        """Raises BackfillError for what another try would not mend."""
        import ray

        number, shards = self._asked.pop(answer)
        found: dict[str, Any] | None
        try:
            found, reason = ray.get(answer), ""
        except ray.exceptions.RayError as error:
            found, reason = None, (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        if found is not None and PROBLEM in found:
            if shards:
                raise BackfillError(found[PROBLEM])
            reason, found = found[PROBLEM], None
            ray.kill(self._actors[number])
        if found is None and not shards:
            self._num_failed += 1
            if self._num_failed >= _MAX_FAILED:
                raise BackfillError(f"{_MAX_FAILED} workers did not start, one after the other: {reason}")
        return Event(number, shards, found, reason)
