"""A whole batch manager under a virtual clock: open-loop arrivals, engines whose batches take a fixed cost plus
tokens over a rate, and deaths. Deterministic by its seed."""

import dataclasses
import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from batch_manager.batches import Batch, Request
from batch_manager.health import Loss
from batch_manager.messages import Policy, Refusal
from batch_manager.scheduler import Dispatch, Effect, Probe, Refuse, Restart, Scheduler
from engine.types import EngineErrorKind, EngineLimits, OutputKind
from wire.vocabulary import RequestClass

FIXED_SECONDS = 0.003
TOKENS_PER_SECOND = 100_000.0
FAILING_SECONDS = 0.0005  # that a sick engine takes for any batch
BACK_SECONDS = 2.0  # after which a restarted engine is ready


@dataclass(frozen=True)
class Sickness:
    """What is wrong with an engine."""

    kind: EngineErrorKind | None  # how each batch fails at once; None = rows come in time, and are wrong
    passes_canaries: bool = False
    is_cured_by_restart: bool = False


@dataclass(frozen=True)
class Load:
    """Requests that come at random times, so many tokens a second on average."""

    request_class: RequestClass
    tokens_per_second: float
    num_seqs: int  # of each request
    seqlens: tuple[int, int]  # shortest and longest
    timeout: float  # seconds
    max_queued_tokens: float  # what admission lets in


@dataclass
class Outcome:
    """What became of the requests of one class."""

    latencies: list[float] = field(default_factory=list)  # seconds, of those that were answered
    tokens: int = 0  # of those that were answered while requests still came
    num_admitted: int = 0
    num_wrong: int = 0  # rows that a sick engine gave
    refusals: list[Refusal] = field(default_factory=list)

    def percentile(self, fraction: float) -> float:
        """Seconds within which this part of the answers came."""
        return sorted(self.latencies)[int(fraction * (len(self.latencies) - 1))]


class Simulator:
    """One model on engines that compute one batch at a time, at so many times TOKENS_PER_SECOND."""

    def __init__(
        self, policy: Policy, limits: EngineLimits, *, seed: int, num_engines: int = 1, speeds: Sequence[float] = ()
    ) -> None:
        self.now = 0.0
        self.outcomes: dict[RequestClass, Outcome] = defaultdict(Outcome)
        self.seconds = 0.0  # for which requests come
        self.num_unanswered = 0
        self._scheduler = Scheduler(policy, num_models=1, now=0.0)
        self._speeds = list(speeds) or [1.0] * num_engines
        self._limits = limits
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._requests: dict[int, Request] = {}
        self._held: dict[int, deque[Batch]] = {}  # by each living engine
        self.busy_seconds = [0.0] * len(self._speeds)
        self._lives = [0] * len(self._speeds)  # deaths so far: what a dead engine began never ends
        self._sick: dict[int, Sickness] = {}
        self.losses: list[Loss] = []
        for engine_id in range(len(self._speeds)):
            self._revive(engine_id)

    def run(self, loads: Sequence[Load], seconds: float) -> None:
        """Let requests come for this long, then finish what is left."""
        self.seconds = seconds
        for load in loads:
            self._later(0.0, partial(self._arrive, load))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self._apply(self._scheduler.dispatch(self.now))
            self._wake()
        self.num_unanswered = self._scheduler.num_requests

    def kill(self, engine_id: int, *, after: float, back_after: float) -> None:
        """An engine dies so many seconds from now and is ready again that much later."""
        self._later(after, partial(self._die, engine_id))
        self._later(after + back_after, partial(self._revive, engine_id))

    def sicken(self, engine_id: int, sickness: Sickness, *, after: float) -> None:
        """From then on something is wrong with an engine."""

        def begin() -> None:
            self._sick[engine_id] = sickness

        self._later(after, begin)

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (self.now + seconds, self._num_events, event))

    def _wake(self) -> None:
        """See to it that the scheduler's timer is served, unless something else happens first."""
        timer = self._scheduler.next_timer()
        if self._events and timer < self._events[0][0]:
            self._later(timer - self.now, lambda: None)

    def _arrive(self, load: Load) -> None:
        seqlens = [self._random.randint(*load.seqlens) for _ in range(load.num_seqs)]
        queued_tokens = self._scheduler.models[0].queued_tokens[load.request_class]
        if queued_tokens + sum(seqlens) <= load.max_queued_tokens:
            self._submit(load, seqlens)
        mean_gap = load.num_seqs * sum(load.seqlens) / 2 / load.tokens_per_second
        gap = self._random.expovariate(1 / mean_gap)
        if self.now + gap < self.seconds:
            self._later(gap, partial(self._arrive, load))

    def _submit(self, load: Load, seqlens: list[int]) -> None:
        request = Request(
            len(self._requests),
            seqlens,
            model=0,
            outputs=OutputKind.POOLED,
            request_class=load.request_class,
            deadline=self.now + load.timeout,
        )
        self._requests[request.request_id] = request
        self.outcomes[load.request_class].num_admitted += 1
        self._apply(self._scheduler.submit(request, self.now))

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Dispatch() | Probe():
                    held = self._held[effect.engine_id]
                    held.append(effect.batch)
                    if len(held) == 1:
                        self._begin(effect.engine_id)
                case Restart():
                    self._restart(effect)
                case Refuse():
                    self.outcomes[self._requests[effect.request_id].request_class].refusals.append(effect.reason)

    def _restart(self, restart: Restart) -> None:
        engine_id = restart.engine_id
        self.losses.append(restart.loss)
        self._lives[engine_id] += 1
        del self._held[engine_id]
        if self._sick[engine_id].is_cured_by_restart:
            del self._sick[engine_id]
        self._later(BACK_SECONDS, partial(self._revive, engine_id))

    def _begin(self, engine_id: int) -> None:
        seconds = FIXED_SECONDS + self._held[engine_id][0].num_tokens / (self._speeds[engine_id] * TOKENS_PER_SECOND)
        if engine_id in self._sick and self._sick[engine_id].kind is not None:
            seconds = FAILING_SECONDS
        self.busy_seconds[engine_id] += seconds if self.now < self.seconds else 0.0
        self._later(seconds, partial(self._finish, engine_id, seconds, self._lives[engine_id]))

    def _finish(self, engine_id: int, seconds: float, life: int) -> None:
        if life != self._lives[engine_id]:
            return
        batch = self._held[engine_id].popleft()
        if self._held[engine_id]:
            self._begin(engine_id)
        scheduler, now = self._scheduler, self.now
        sickness = self._sick.get(engine_id)
        if sickness is not None and not (batch.is_canary and sickness.passes_canaries):
            if batch.is_canary or sickness.kind is not None:
                kind = sickness.kind or EngineErrorKind.FAILED
                self._apply(scheduler.batch_failed(engine_id, batch.batch_id, kind=kind, now=now))
                return
            for piece in batch.slices:
                self.outcomes[piece.request.request_class].num_wrong += piece.stop - piece.start
        for delivery in scheduler.batch_done(engine_id, batch.batch_id, compute_seconds=seconds, now=now):
            request = delivery.piece.request
            if delivery.is_last:
                outcome = self.outcomes[request.request_class]
                outcome.latencies.append(now - request.arrived)
                outcome.tokens += request.num_tokens if now < self.seconds else 0

    def _die(self, engine_id: int) -> None:
        self._lives[engine_id] += 1
        del self._held[engine_id]
        self._apply(self._scheduler.engine_lost(engine_id, self.now))

    def _revive(self, engine_id: int) -> None:
        self._held[engine_id] = deque()
        rate = self._speeds[engine_id] * self._limits.tokens_per_second
        limits = dataclasses.replace(self._limits, tokens_per_second=rate)
        self._apply(self._scheduler.engine_ready(engine_id, model=0, limits=limits, now=self.now))
