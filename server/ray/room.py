"""Waits for places in a Ray cluster: says once a minute what for, and ends a job that has had none for too long."""

import sys
import time
from collections.abc import Callable

from server.backfill.errors import BackfillError

_SAY_SECONDS = 60.0


class Room:
    """For the workers of one job."""

    def __init__(
        self, needs: str, seconds: float, cluster: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`needs`: of one worker. `seconds` without one are too many. `cluster` says what there is."""
        self._needs, self._seconds, self._cluster, self._clock = needs, seconds, cluster, clock
        self._goes_on_at = self._said_at = clock()

    def found(self) -> None:
        """A worker has answered, or computes."""
        self._goes_on_at = self._said_at = self._clock()

    def check(self, is_computing: Callable[[], bool]) -> None:
        """No worker has answered. `is_computing`: whether one that has a place has work. Raises BackfillError."""
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
