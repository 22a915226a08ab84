"""A whole server under a virtual clock: open-loop arrivals, admission, a batch manager, and engines whose batches take
a fixed cost plus tokens over a rate, and die. Admission, the scheduler and the shared page are the server's own.
Deterministic by its seed."""

import dataclasses
import enum
import heapq
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from batch_manager.messages import Policy, RequestRefusal
from batch_manager.scheduling.batches import ScheduledBatch, ScheduledRequest
from batch_manager.scheduling.engines import Loss
from batch_manager.scheduling.scheduler import Dispatch, Effect, Probe, Refuse, Restart, Scheduler
from batch_manager.worker import Publisher
from engine.types import EngineErrorKind, EngineLimits, OutputKind
from server.requests.admission import Admission, Admitted, Asked, WaitBudgets
from server.requests.errors import Overloaded
from server.settings.api_keys import ApiKey
from wire.page import Page
from wire.vocabulary import RequestClass

FIXED_SECONDS = 0.003
TOKENS_PER_SECOND = 100_000.0
FAILING_SECONDS = 0.0005  # that a sick engine takes for any batch
BACK_SECONDS = 2.0  # after which a restarted engine is ready
BUDGETS = WaitBudgets(interactive=0.25, bulk=10.0)


@dataclass(frozen=True)
class Sickness:
    """What is wrong with an engine."""

    kind: EngineErrorKind | None  # how each batch fails at once; None = rows come in time, and are wrong
    passes_canaries: bool = False
    is_cured_by_restart: bool = False


class Retry(enum.Enum):
    """What a client does that is refused."""

    NEVER = enum.auto()
    AFTER = enum.auto()  # once, when Retry-After says so
    AT_ONCE = enum.auto()  # three times, a moment later


@dataclass(frozen=True)
class Load:
    """Requests that come at random times, so many tokens a second on average."""

    request_class: RequestClass
    tokens_per_second: float
    num_seqs: int  # of each request
    seqlens: tuple[int, int]  # shortest and longest
    timeout: float  # seconds; inf = none
    key: str = ""
    first: float = 0.0  # seconds: when it begins
    last: float = math.inf  # when it ends; at the end of the run if that is sooner
    retry: Retry = Retry.NEVER
    leaves_within: float = 0.0  # seconds: every second client leaves at a random moment of these; 0 = all stay
    num_shared: int = 0  # tokens that all sequences of a request begin with and that a batch computes once


@dataclass
class Outcome:
    """What became of the requests of one class, or of one key."""

    latencies: list[float] = field(default_factory=list)  # seconds, of those that were answered in time
    tokens: int = 0  # of those that were answered in time while requests still came
    num_offered: int = 0  # retries not counted
    offered_tokens: int = 0  # the same in tokens
    num_admitted: int = 0  # retries counted
    num_late: int = 0  # answered after their deadline
    num_left: int = 0  # clients that left before their answer
    num_wrong: int = 0  # rows that a sick engine gave
    refusals: list[RequestRefusal] = field(default_factory=list)  # of the batch manager
    reasons: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # of admission
    num_retries: int = 0  # first retries
    num_retries_admitted: int = 0

    def percentile(self, fraction: float) -> float:
        """Seconds within which this part of the answers came."""
        return sorted(self.latencies)[int(fraction * (len(self.latencies) - 1))]


@dataclass
class _Open:
    """A request that was let in and has no answer yet."""

    request: ScheduledRequest
    admitted: Admitted
    load: Load


class Simulator:
    """One model on engines that compute one batch at a time, at so many times TOKENS_PER_SECOND.

    Every request is taken by the next of the frontends.
    """

    def __init__(
        self,
        policy: Policy,
        limits: EngineLimits,
        *,
        seed: int,
        num_engines: int = 1,
        speeds: Sequence[float] = (),
        budgets: WaitBudgets = BUDGETS,
        keys: Sequence[ApiKey] = (),
        num_frontends: int = 1,
    ) -> None:
        self.now = 0.0
        self.outcomes: dict[RequestClass, Outcome] = defaultdict(Outcome)
        self.by_key: dict[str, Outcome] = defaultdict(Outcome)
        self.seconds = 0.0  # for which requests come
        self.computed_tokens = 0
        self.wasted_tokens = 0  # computed for clients that had left
        self.answered: list[tuple[float, float]] = []  # when, and after how many seconds
        self.returned: list[tuple[float, int]] = []  # first retries by Retry-After: when, and how many tokens
        self.scheduler = Scheduler(policy, num_models=1, now=0.0)
        self.page = Page.create(num_frontends=num_frontends, num_managers=1, num_models=1, num_keys=max(1, len(keys)))
        self._publisher = Publisher(self.scheduler.models, self.page, index=0)
        self.frontends = [
            Admission(self.page, frontend=at, budgets=budgets, max_requests=1, keys=keys, clock=lambda: self.now)
            for at in range(num_frontends)
        ]
        self._speeds = list(speeds) or [1.0] * num_engines
        self._limits = limits
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._num_requests = 0
        self._open: dict[int, _Open] = {}
        self._held: dict[int, deque[ScheduledBatch]] = {}  # by each living engine
        self.busy_seconds = [0.0] * len(self._speeds)
        self._lives = [0] * len(self._speeds)  # deaths so far: what a dead engine began never ends
        self._sick: dict[int, Sickness] = {}
        self.losses: list[Loss] = []
        for engine_id in range(len(self._speeds)):
            self._revive(engine_id)

    @property
    def num_unanswered(self) -> int:
        """Requests that neither side has forgotten."""
        return len(self._open) + self.scheduler.num_requests

    def run(self, loads: Sequence[Load], seconds: float) -> None:
        """Let requests come for this long, then finish what is left."""
        self.seconds = seconds
        for load in loads:
            self._later(load.first, partial(self._arrive, load))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self._apply(self.scheduler.dispatch(self.now))
            self._publisher.publish(self.now)
            self._wake()

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
        timer = self.scheduler.next_timer()
        if self._events and timer < self._events[0][0]:
            self._later(timer - self.now, lambda: None)

    # Clients

    def _outcomes(self, load: Load) -> tuple[Outcome, ...]:
        return (self.outcomes[load.request_class], *([self.by_key[load.key]] if load.key else []))

    def _arrive(self, load: Load) -> None:
        seqlens = [self._random.randint(*load.seqlens) for _ in range(load.num_seqs)]
        for outcome in self._outcomes(load):
            outcome.num_offered += 1
            outcome.offered_tokens += sum(seqlens)
        self._offer(load, seqlens, 0)
        mean_gap = load.num_seqs * sum(load.seqlens) / 2 / load.tokens_per_second
        gap = self._random.expovariate(1 / mean_gap)
        if self.now + gap < min(self.seconds, load.last):
            self._later(gap, partial(self._arrive, load))

    def _offer(self, load: Load, seqlens: list[int], num_tries: int) -> None:
        self._num_requests += 1
        num_tokens, deadline = sum(seqlens), self.now + load.timeout
        frontend = self.frontends[self._num_requests % len(self.frontends)]
        outcomes = self._outcomes(load)
        for outcome in outcomes:
            outcome.num_retries += num_tries == 1
        try:
            admitted = frontend.admit(Asked(0, load.request_class, num_tokens, deadline, load.key))
        except Overloaded as refused:
            for outcome in outcomes:
                outcome.reasons[refused.reason] += 1
            self._refused(load, seqlens, num_tries, refused.retry_after or 0.0)
            return
        for outcome in outcomes:
            outcome.num_admitted += 1
            outcome.num_retries_admitted += num_tries == 1
        request = ScheduledRequest(
            self._num_requests,
            seqlens,
            shared=[0, *[load.num_shared] * (len(seqlens) - 1)] if load.num_shared else (),
            model=0,
            outputs=OutputKind.POOLED,
            request_class=load.request_class,
            deadline=deadline,
            key=admitted.key.index,
            weight=admitted.key.weight,
        )
        admitted.__enter__()
        admitted.computes(request.num_tokens)
        self._open[request.request_id] = _Open(request, admitted, load)
        self._apply(self.scheduler.submit(request, self.now))
        if load.leaves_within and self._random.random() < 0.5:
            self._later(self._random.uniform(0, load.leaves_within), partial(self._leave, request.request_id))

    def _refused(self, load: Load, seqlens: list[int], num_tries: int, retry_after: float) -> None:
        if load.retry is Retry.AT_ONCE and num_tries < 3:
            self._later(0.001, partial(self._offer, load, seqlens, num_tries + 1))
        elif load.retry is Retry.AFTER and not num_tries:
            seconds = max(1, math.ceil(retry_after))  # as the header says it
            self.returned.append((self.now + seconds, sum(seqlens)))
            self._later(seconds, partial(self._offer, load, seqlens, 1))

    def _leave(self, request_id: int) -> None:
        if request_id in self._open:
            self.scheduler.cancel(request_id)
            for outcome in self._outcomes(self._close(request_id).load):
                outcome.num_left += 1

    def _close(self, request_id: int) -> _Open:
        closed = self._open.pop(request_id)
        closed.admitted.__exit__(None, None, None)
        return closed

    # Engines

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Dispatch() | Probe():
                    held = self._held[effect.engine_id]
                    slices = effect.batch.slices
                    assert all(slice_.request.request_id in self._open for slice_ in slices), "computed for nobody"
                    held.insert(self._place(held, effect.batch), effect.batch)
                    if len(held) == 1:
                        self._begin(effect.engine_id)
                case Restart():
                    self._restart(effect)
                case Refuse():
                    for outcome in self._outcomes(self._close(effect.request_id).load):
                        outcome.refusals.append(effect.reason)

    def _place(self, held: Sequence[ScheduledBatch], batch: ScheduledBatch) -> int:
        """Behind all others; an urgent one behind the first and other urgent ones where the engine has it so."""
        if not (batch.is_urgent and self._limits.puts_urgent_first):
            return len(held)
        return next((at for at, one in enumerate(held) if at and not one.is_urgent), len(held))

    def _restart(self, restart: Restart) -> None:
        engine_id = restart.engine_id
        self.losses.append(restart.loss)
        self._lives[engine_id] += 1
        del self._held[engine_id]
        if self._sick[engine_id].is_cured_by_restart:
            del self._sick[engine_id]
        self._later(BACK_SECONDS, partial(self._revive, engine_id))

    def _begin(self, engine_id: int) -> None:
        fixed = self._limits.fixed_batch_seconds or FIXED_SECONDS
        seconds = fixed + self._held[engine_id][0].num_tokens / (self._speeds[engine_id] * TOKENS_PER_SECOND)
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
        sickness = self._sick.get(engine_id)
        if sickness is not None and not (batch.is_canary and sickness.passes_canaries):
            if batch.is_canary or sickness.kind is not None:
                kind = sickness.kind or EngineErrorKind.FAILED
                self._apply(self.scheduler.batch_failed(engine_id, batch.batch_id, kind=kind, now=self.now))
                return
            for slice_ in batch.slices:
                self.outcomes[slice_.request.request_class].num_wrong += slice_.stop - slice_.start
        deliveries = self.scheduler.batch_done(engine_id, batch.batch_id, compute_seconds=seconds, now=self.now)
        self.computed_tokens += batch.num_tokens
        self.wasted_tokens += batch.num_tokens - sum(delivery.slice.num_tokens for delivery in deliveries)
        for delivery in deliveries:
            if delivery.is_last:
                self._answered(self._close(delivery.slice.request.request_id))

    def _answered(self, closed: _Open) -> None:
        request, seconds = closed.request, self.now - closed.request.arrived
        for outcome in self._outcomes(closed.load):
            if self.now > request.deadline:
                outcome.num_late += 1
            else:
                outcome.latencies.append(seconds)
                outcome.tokens += request.num_tokens if self.now < self.seconds else 0
        self.answered.append((self.now, seconds))

    def _die(self, engine_id: int) -> None:
        self._lives[engine_id] += 1
        del self._held[engine_id]
        self._apply(self.scheduler.engine_lost(engine_id, self.now))

    def _revive(self, engine_id: int) -> None:
        self._held[engine_id] = deque()
        rate = self._speeds[engine_id] * self._limits.tokens_per_second
        limits = dataclasses.replace(self._limits, tokens_per_second=rate)
        self._apply(self.scheduler.engine_ready(engine_id, model=0, limits=limits, now=self.now))
