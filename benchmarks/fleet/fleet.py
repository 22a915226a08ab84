"""Replicas behind a balancer, their starts and ends, and an autoscaler that looks at them: a trace goes through.

A replica costs from the moment it is ordered to its end. It takes requests once it has started. One that is given up
gets nothing new, and ends when it has answered what it has. Requests that find no replica are parked, as many as
`MAX_PARKED`, and go to the first that is ready.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.fleet.autoscalers import Scaler, Seen
from benchmarks.fleet.clock import Clock
from benchmarks.fleet.fifo import FifoReplica
from benchmarks.fleet.machines import Machine
from benchmarks.fleet.replica import Job, Replica
from benchmarks.fleet.traces import Trace

MAX_PARKED = 1000
_RECORD_SECONDS = 60.0

Balancer = Callable[[Sequence["Place"], int], "Place"]  # of the ready places, for the n-th request


@dataclass(eq=False, slots=True)
class Place:
    """A replica's machine, from its order to its end."""

    ordered_at: float  # seconds
    replica: Replica | FifoReplica | None = None  # None = it starts
    is_leaving: bool = False
    ended_at: float = math.inf

    @property
    def server(self) -> Replica | FifoReplica:
        """Of a place that is ready."""
        assert self.replica is not None
        return self.replica


BALANCERS: dict[str, Balancer] = {
    "round-robin": lambda ready, number: ready[number % len(ready)],
    "least-requests": lambda ready, _: min(ready, key=lambda place: place.server.num_requests),
    "least-tokens": lambda ready, _: min(ready, key=lambda place: place.server.num_tokens),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """The fleet once a minute."""

    seconds: float
    num_ready: int
    num_starting: int
    num_requests: int
    num_tokens: int
    oldest_wait: float  # seconds


@dataclass(slots=True)
class Course:
    """What became of a trace. Latencies are in seconds, by the request's place in the trace; inf = refused."""

    latencies: list[float]
    num_refused: int = 0
    replica_seconds: float = 0.0  # from order to end
    busy_seconds: float = 0.0  # of all engines
    seconds: float = 0.0  # until the last request ended
    moments: list[Moment] = field(default_factory=list)


class Fleet:
    """Runs once. `num_first` replicas are ready when the trace begins."""

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        scaler: Scaler,
        *,
        balancer: Balancer,
        num_first: int = 1,
        server: type[Replica | FifoReplica] = Replica,
    ) -> None:
        self._trace = trace
        self._machine = machine
        self._scaler = scaler
        self._balancer = balancer
        self._server = server
        self._clock = Clock()
        self._places: list[Place] = []
        self._parked: deque[Job] = deque()
        self._num_open = 0
        self._num_sent = 0
        self._computed_tokens = 0  # by replicas that have ended
        self._course = Course([math.nan] * len(trace))
        for _ in range(num_first):
            self._ready(self._order())

    def run(self) -> Course:
        """Until every request has ended."""
        self._later_arrival(0)
        self._look()
        self._record()
        self._clock.run()
        course = self._course
        for place in self._places:
            self._end(place, course.seconds)
        assert not any(map(math.isnan, course.latencies)), "every request ends"
        return course

    # Requests

    @property
    def _is_over(self) -> bool:
        return self._num_sent == len(self._trace) and not self._num_open

    def _later_arrival(self, number: int) -> None:
        if number < len(self._trace):
            self._clock.at(float(self._trace.at[number]), partial(self._arrive, number))

    def _arrive(self, number: int) -> None:
        trace = self._trace
        self._num_sent += 1
        self._num_open += 1
        job = Job(number, self._clock.now, int(trace.texts[number]), int(trace.tokens[number]))
        if any(place.replica and not place.is_leaving for place in self._places):
            self._send(job)
        elif len(self._parked) < MAX_PARKED:
            self._parked.append(job)
        else:
            self._ended(job, False)
        self._later_arrival(number + 1)

    def _send(self, job: Job) -> None:
        ready = [place for place in self._places if place.replica and not place.is_leaving]
        if not self._balancer(ready, job.number).server.offer(job):
            self._ended(job, False)

    def _ended(self, job: Job, is_answered: bool) -> None:
        self._num_open -= 1
        self._course.num_refused += not is_answered
        self._course.latencies[job.number] = self._clock.now - job.at if is_answered else math.inf
        self._course.seconds = self._clock.now
        for place in self._places:
            if place.is_leaving and place.replica and not place.replica.num_requests:
                self._end(place, self._clock.now)

    # Replicas

    def _order(self) -> Place:
        place = Place(self._clock.now)
        self._places.append(place)
        return place

    def _ready(self, place: Place) -> None:
        if place.ended_at < math.inf:  # given up while it started
            return
        place.replica = self._server(self._machine, self._clock, self._ended)
        while self._parked:
            self._send(self._parked.popleft())

    def _leave(self, place: Place) -> None:
        place.is_leaving = True
        if place.replica is None or not place.replica.num_requests:
            self._end(place, self._clock.now)

    def _end(self, place: Place, at: float) -> None:
        place.ended_at = at
        self._course.replica_seconds += at - place.ordered_at
        if place.replica:
            self._course.busy_seconds += place.replica.busy_seconds
            self._computed_tokens += place.replica.computed_tokens
        self._places = [one for one in self._places if one is not place]

    # The autoscaler

    def _seen(self) -> Seen:
        servers = [place.replica for place in self._places if place.replica]
        return Seen(
            now=self._clock.now,
            num_replicas=sum(not place.is_leaving for place in self._places),
            num_requests=len(self._parked) + sum(server.num_requests for server in servers),
            num_parked=len(self._parked),
            num_tokens=sum(server.num_tokens for server in servers),
            oldest_wait=max((server.oldest_wait() for server in servers), default=0.0),
            computed_tokens=self._computed_tokens + sum(server.computed_tokens for server in servers),
        )

    def _look(self) -> None:
        if self._is_over:
            return
        seen = self._seen()
        wanted = self._scaler.look(seen)
        for _ in range(seen.num_replicas, wanted):
            self._clock.at(self._clock.now + self._machine.start_seconds, partial(self._ready, self._order()))
        staying = [place for place in self._places if not place.is_leaving]
        for place in staying[wanted:]:  # the newest leave, so those that still start go first
            self._leave(place)
        self._clock.at(self._clock.now + self._scaler.rules.period, self._look)

    def _record(self) -> None:
        if self._is_over:
            return
        seen = self._seen()
        num_ready = sum(place.replica is not None and not place.is_leaving for place in self._places)
        self._course.moments.append(
            Moment(
                seen.now,
                num_ready,
                seen.num_replicas - num_ready,
                seen.num_requests,
                seen.num_tokens,
                seen.oldest_wait,
            )
        )
        self._clock.at(self._clock.now + _RECORD_SECONDS, self._record)
