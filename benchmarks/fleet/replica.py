"""One server in virtual time: admission, the batch manager's scheduler and the shared page are the server's own.

Its engines take as long for a batch as the machine says. Knows no balancer and no autoscaler.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from batch_manager.messages import Policy
from batch_manager.scheduling.batches import ScheduledBatch, ScheduledRequest
from batch_manager.scheduling.scheduler import Dispatch, Effect, Probe, Refuse, Scheduler
from batch_manager.worker import Publisher
from benchmarks.fleet.clock import Clock
from benchmarks.fleet.machines import Machine
from engine.types import OutputKind
from server.requests.admission import Admission, Admitted, Asked, WaitBudgets
from server.requests.errors import Overloaded
from server.requests.pipeline import BULK_ITEMS, BULK_TOKENS
from wire.page import Page
from wire.vocabulary import RequestClass

BUDGETS = WaitBudgets(interactive=10.0, bulk=300.0)  # the defaults of --interactive-max-wait and --bulk-max-wait


@dataclass(frozen=True, slots=True)
class Job:
    """A request of the trace."""

    number: int
    at: float  # seconds: when it came
    num_texts: int
    num_tokens: int

    @property
    def request_class(self) -> RequestClass:
        """As the server chooses it, by size."""
        is_bulk = self.num_texts > BULK_ITEMS or self.num_tokens > BULK_TOKENS
        return RequestClass.BULK if is_bulk else RequestClass.INTERACTIVE

    @property
    def seqlens(self) -> list[int]:
        """Its tokens, evenly over its texts."""
        each, more = divmod(self.num_tokens, self.num_texts)
        return [each + 1] * more + [each] * (self.num_texts - more)


class Replica:
    """A server with one model. `on_end` hears of each request that was let in: whether it was answered."""

    def __init__(self, machine: Machine, clock: Clock, on_end: Callable[[Job, bool], None]) -> None:
        self._machine = machine
        self._clock = clock
        self._on_end = on_end
        self._scheduler = Scheduler(Policy(), num_models=1, now=clock.now)
        self._page = Page.create(num_frontends=1, num_managers=1, num_models=1)
        self._publisher = Publisher(self._scheduler.models, self._page, index=0)
        self._admission = Admission(self._page, frontend=0, budgets=BUDGETS, max_requests=1, clock=lambda: clock.now)
        self._open: dict[int, tuple[Job, Admitted]] = {}
        self._held: list[deque[ScheduledBatch]] = [deque() for _ in range(machine.num_engines)]
        self._timer_at = float("inf")
        self.busy_seconds = 0.0  # of all engines
        self.computed_tokens = 0  # as embedline_batch_tokens_sum
        for engine_id in range(machine.num_engines):
            self._apply(self._scheduler.engine_ready(engine_id, model=0, limits=machine.limits, now=clock.now))
        self._tick()

    @property
    def num_requests(self) -> int:
        """Let in and not ended."""
        return len(self._open)

    @property
    def num_tokens(self) -> int:
        """Waiting or being computed: the sum of the gauge embedline_queue_tokens."""
        return sum(self._scheduler.models[0].queued_tokens)

    def oldest_wait(self) -> float:
        """Seconds: the larger of the two classes' gauges embedline_queue_oldest_age_seconds."""
        waiting = [since for since in self._page.oldest_since[0, 0].tolist() if since]
        return max((self._clock.now - since for since in waiting), default=0.0)

    def offer(self, job: Job) -> bool:
        """Whether the server lets it in; else it has answered 429."""
        try:
            admitted = self._admission.admit(
                Asked(0, job.request_class, job.num_tokens, num_seqs=job.num_texts)
            ).__enter__()
        except Overloaded:
            return False
        self._open[job.number] = job, admitted
        self._clock.at(self._clock.now + self._machine.host_seconds(job.num_tokens), partial(self._submit, job))
        return True

    def _submit(self, job: Job) -> None:
        request = ScheduledRequest(
            job.number,
            job.seqlens,
            model=0,
            outputs=OutputKind.POOLED,
            request_class=job.request_class,
            deadline=float("inf"),
        )
        self._apply(self._scheduler.submit(request, self._clock.now))
        self._tick()

    def _tick(self) -> None:
        """As the batch manager does after events: form batches, publish, set the timer."""
        now = self._clock.now
        self._apply(self._scheduler.dispatch(now))
        self._publisher.publish(now)
        timer = self._scheduler.next_timer()
        if timer < self._timer_at:
            self._timer_at = timer
            self._clock.at(timer, self._timer_came)

    def _timer_came(self) -> None:
        self._timer_at = float("inf")
        self._tick()

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Dispatch() | Probe():
                    held = self._held[effect.engine_id]
                    held.append(effect.batch)
                    if len(held) == 1:
                        self._begin(effect.engine_id)
                case Refuse():
                    self._end(effect.request_id, is_answered=False)
                case _:
                    raise AssertionError("engines here never fail")

    def _begin(self, engine_id: int) -> None:
        seconds = self._machine.seconds_of(self._held[engine_id][0].num_tokens)
        self.busy_seconds += seconds
        self._clock.at(self._clock.now + seconds, partial(self._finish, engine_id, seconds))

    def _finish(self, engine_id: int, seconds: float) -> None:
        held = self._held[engine_id]
        batch = held.popleft()
        self.computed_tokens += batch.num_tokens
        if held:
            self._begin(engine_id)
        done = self._scheduler.batch_done(engine_id, batch.batch_id, compute_seconds=seconds, now=self._clock.now)
        for delivery in done:
            if delivery.is_last:
                self._end(delivery.slice.request.request_id, is_answered=True)
        self._tick()

    def _end(self, number: int, *, is_answered: bool) -> None:
        job, admitted = self._open.pop(number)
        admitted.__exit__(None, None, None)
        self._on_end(job, is_answered)
