"""A server in virtual time, simplified: bulk is computed in its order, a request at a time, and queries before it.

It stands in for `Replica`, some thirty times as quick, where many days are to be compared. `scaling` holds the two
side by side.
"""

from collections.abc import Callable
from functools import partial

from benchmarks.fleet.clock import Clock
from benchmarks.fleet.machines import Machine
from benchmarks.fleet.replica import BUDGETS, Job
from wire.vocabulary import RequestClass


class FifoReplica:
    """As `Replica`, of a machine with one engine."""

    def __init__(self, machine: Machine, clock: Clock, on_end: Callable[[Job, bool], None]) -> None:
        self._machine = machine
        self._clock = clock
        self._on_end = on_end
        self._free_at = clock.now
        self._admitted_tokens = 0
        self.num_requests = 0
        self.busy_seconds = 0.0

    @property
    def num_tokens(self) -> int:
        """Waiting or being computed."""
        return round(max(0.0, self._free_at - self._clock.now) * self._machine.tokens_per_second)

    @property
    def computed_tokens(self) -> int:
        """Of everything that was let in, what does not wait any more."""
        return max(0, self._admitted_tokens - self.num_tokens)

    def oldest_wait(self) -> float:
        """Not known here."""
        return 0.0

    def offer(self, job: Job) -> bool:
        """Whether the server lets it in."""
        now, seconds = self._clock.now, self._machine.seconds_of(job.num_tokens)
        begins = max(self._free_at, now)
        if begins - now > BUDGETS.bulk:
            return False
        self._free_at = begins + seconds
        self._admitted_tokens += job.num_tokens
        self.busy_seconds += seconds
        self.num_requests += 1
        is_query = job.request_class is RequestClass.INTERACTIVE
        ends = now + seconds if is_query else self._free_at
        self._clock.at(ends + self._machine.host_seconds(job.num_tokens), partial(self._end, job))
        return True

    def _end(self, job: Job) -> None:
        self.num_requests -= 1
        self._on_end(job, True)
