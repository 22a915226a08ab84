"""Decides which waiting sequences go to which engine when. A pure state machine: (state, event, now) -> effects.

It has no clock, does no I/O and sees no token ids, so the same class runs in the batch manager's
process and in a simulator. Its methods are the events; `now` is in time.monotonic() seconds and
never goes back. Whoever drives it calls `dispatch` after events, once for as many as came
together, and at `next_timer`.

What becomes of a batch that gives no rows (`after_failure`, `after_death`):

- It failed and the engine goes on: the engine may be sick (see `Health`), so the batch as it is goes to another engine
  of the model. Where there is none, or where it fails again, its halves are tried as batches of their
  own, before new work of their class, and halves of those; a sequence that failed alone on two engines, or on the only
  one, is refused. So a sequence of a batch of n fails at most 2 log2(n) + 4 times. A batch that is too large for the
  memory is halved at once.
- Its engine died while the batch was only staged, or was restarted for failings of its own: nobody is suspected, its
  sequences wait again, at the front.
- Its engine died while the batch was being computed (where batches overlap, see `EngineLimits`, that may be any that
  it held): any of its n sequences may be the cause. They become suspects, in groups of about the square root of n, or
  alone if they are few. Suspects have their engine to themselves (`ReadyEngine.has_room`, `may_be_suspect`), so that
  the next death is their doing. If a group is computed, it has its rows and is cleared. If its engine dies, each of it
  is tried alone; what is alone at a death is refused as poison. One culprit among 1,024 costs three deaths and at most
  64 batches. Trying each alone would cost two deaths and 1,024 batches, halving eleven deaths and 20 batches.
- Suspects take turns with the other work of their class (`Backlog`), so that neither waits for all of the other.
Whatever is tried again is refused instead if its deadline has come or its client has left.
"""

import math
from collections.abc import Iterable, Sequence

from batch_manager.messages import Policy, RequestRefusal
from batch_manager.scheduling.batches import ScheduledBatch, ScheduledRequest, Slice, by_class, halves, num_seqs, parts
from batch_manager.scheduling.engines import Loss, ReadyEngine, fits
from batch_manager.scheduling.model import Model
from engine.types import EngineErrorKind, EngineLimits
from wire.records import light_dataclass
from wire.vocabulary import RequestClass

# Sequences that are tried one by one. With more, an engine that is killed from outside is often killed while an
# innocent one is alone with it.
_FEW_SUSPECTS = 16


@light_dataclass(frozen=True, slots=True)
class Dispatch:
    """Send this batch to this engine."""

    engine_id: int
    batch: ScheduledBatch


@light_dataclass(frozen=True, slots=True)
class Deliver:
    """The rows of these sequences are in, from sequence `at` of the finished batch on."""

    slice: Slice
    at: int
    is_last: bool  # the request has all its rows now


@light_dataclass(frozen=True, slots=True)
class Refuse:
    """The request gets no rows, and is no longer known."""

    request_id: int
    reason: RequestRefusal
    index: int = -1  # of the sequence that is to blame
    retry_after: float = 0.0  # seconds


@light_dataclass(frozen=True, slots=True)
class Probe:
    """Have this engine compute its canary; the batch is answered like any other, without rows."""

    engine_id: int
    batch: ScheduledBatch
    num_failures: int  # batches in a row that failed on it; 0 = the canary is a matter of routine


@light_dataclass(frozen=True, slots=True)
class Restart:
    """This engine is lost though its process runs: have the process end."""

    engine_id: int
    loss: Loss


# An order of the scheduler. Whoever drives it does it at once, in order.
Effect = Dispatch | Refuse | Probe | Restart


class Scheduler:
    """Keeps every request until it has all its rows, is refused or is cancelled."""

    def __init__(self, policy: Policy, *, num_models: int, now: float, first_batch_id: int = 1) -> None:
        self._policy = policy
        self.models = [Model(policy, now=now) for _ in range(num_models)]  # to be read only
        self._requests: dict[int, ScheduledRequest] = {}
        self._engines: dict[int, ReadyEngine] = {}
        self._next_batch_id = first_batch_id
        self._is_draining = False

    @property
    def num_requests(self) -> int:
        """Requests that are neither answered nor refused nor cancelled."""
        return len(self._requests)

    @property
    def num_sequences(self) -> int:
        """Sequences of them that have no rows yet."""
        return sum(request.num_left for request in self._requests.values())

    @property
    def num_suspected(self) -> int:
        """Ready engines that fail batch after batch."""
        return sum(engine.health.is_suspected for engine in self._engines.values())

    # Events of frontends

    def submit(self, request: ScheduledRequest, now: float) -> list[Refuse]:
        """Take a request; its id must be new."""
        request.arrived = now
        if self._is_draining:
            return [Refuse(request.request_id, RequestRefusal.STOPPING)]
        model = self.models[request.model]
        if request.max_seqlen > model.max_seqlen:
            return [Refuse(request.request_id, RequestRefusal.TOO_LONG, model.first_too_long(request))]
        self._requests[request.request_id] = request
        model.add(request)
        return []

    def extend(self, request: ScheduledRequest, deadline: float) -> None:
        """Somebody else wants the rows of an open request too, and perhaps until later."""
        if deadline > request.deadline:
            request.deadline = deadline
            if request.waiting_tokens:
                self.models[request.model].deadlines[request.request_class].add(request)

    def cancel(self, request_id: int) -> None:
        """Forget a request; what of it is in an engine is computed and dropped. An unknown id is no error."""
        request = self._requests.get(request_id)
        if request is not None:
            self._close(request)

    # Events of engines

    def engine_ready(self, engine_id: int, *, model: int, limits: EngineLimits, now: float) -> list[Refuse]:
        """An engine can take batches. Waiting requests that it never could take are refused."""
        refusals = self.engine_lost(engine_id, now)
        its_model = self.models[model]
        engine = self._engines[engine_id] = ReadyEngine(engine_id, limits, model=model)
        its_model.add_engine(engine)
        too_long = [request for request in self._waiting(its_model) if request.max_seqlen > its_model.max_seqlen]
        return refusals + [
            self._refuse(r, RequestRefusal.TOO_LONG, index=its_model.first_too_long(r)) for r in too_long
        ]

    def engine_lost(self, engine_id: int, now: float, *, was_restarted: bool = False) -> list[Refuse]:
        """An engine is gone. What it held waits again, before everything else. An unknown id is no error.

        Whatever was being computed may be what brought the engine down, unless it was restarted for failings of its
        own: each such sequence is tried again, and refused if it was alone.
        """
        engine = self._engines.pop(engine_id, None)
        if engine is None:
            return []
        model = self.models[engine.model]
        model.remove_engine(engine, now=now)
        batches = list(engine.batches.values())
        refusals = self._refuse_late([*batches, *engine.retries], now)
        computing = [] if was_restarted else engine.computing
        staged = [batch for batch in batches if batch not in computing]
        to_blame = after_death(model, computing, [*staged, *engine.retries])
        refusals += [self._refuse(slice_.request, RequestRefusal.POISON, index=slice_.start) for slice_ in to_blame]
        if self._is_draining and not model.engines:
            refusals += self._refuse_waiting(model, RequestRefusal.STOPPING)
        return refusals

    def batch_done(self, engine_id: int, batch_id: int, *, compute_seconds: float, now: float) -> list[Deliver]:
        """The rows of a batch came. Those of a batch that the engine does not hold are passed over."""
        engine = self._engines.get(engine_id)
        batch = engine.take(batch_id) if engine else None
        if engine is None or batch is None:
            return []
        if batch.is_canary:
            engine.health.canary_passed(now)
            return []
        engine.health.computed(now)
        if batch.failed_on is not None and (other := self._engines.get(batch.failed_on)) is not None:
            other.health.refuted()
        self.models[engine.model].note_done(batch, compute_seconds, limits=engine.limits, now=now)
        deliveries = []
        at = 0
        for slice_ in batch.slices:
            request = slice_.request
            num_done = slice_.stop - slice_.start
            if request.is_open:
                request.num_left -= num_done
                deliveries.append(Deliver(slice_, at, not request.num_left))
                if not request.num_left:
                    self._close(request)
            at += num_done
        return deliveries

    def batch_failed(self, engine_id: int, batch_id: int, *, kind: EngineErrorKind, now: float) -> list[Refuse]:
        """A batch gave no rows. What it held is tried again, on another engine or in smaller batches, until what fails
        stands alone."""
        engine = self._engines.get(engine_id)
        batch = engine.batches.get(batch_id) if engine else None
        if engine is None or batch is None:
            return []
        if batch.is_canary:
            engine.health.loss = Loss.CANARY
            return []
        if kind == EngineErrorKind.FATAL:
            return self.engine_lost(engine_id, now)
        engine.take(batch_id)
        engine.health.failed(now)
        refusals = self._refuse_late([batch], now)
        to_blame = after_failure(self.models[engine.model], batch, engine=engine, kind=kind)
        reason = RequestRefusal.NON_FINITE if kind == EngineErrorKind.NON_FINITE else RequestRefusal.ENGINE_FAILED
        return refusals + [self._refuse(slice_.request, reason, index=slice_.start) for slice_ in to_blame]

    def refuted(self, model: int) -> None:
        """A request that failed on the only engine of a model here was computed by another batch manager's."""
        engines = self.models[model].engines
        if len(engines) == 1:  # else it is not known which
            engines[0].health.refuted()

    # The clock

    def dispatch(self, now: float) -> list[Effect]:
        """Refuse what is overdue or can't be done in time, and give engines what they should have."""
        effects: list[Effect] = []
        for model in self.models:
            if model.has_timer:
                effects += self._refuse_overdue(model, now)
            for engine in list(model.engines):
                effects += self._look_after(engine, now)
            if not any(model.queued_tokens):
                continue
            model.note_begun(now)
            if has_timer := model.has_timer:
                effects += self._refuse_hopeless(model, now)
            while (chosen := model.next_batch(now)) is not None:
                engine, batch = chosen
                self._put(batch, engine)
                effects.append(Dispatch(engine.engine_id, batch))
                model.note_begun(now)
                if has_timer:
                    effects += self._refuse_hopeless(model, now)
        return effects

    def _look_after(self, engine: ReadyEngine, now: float) -> list[Effect]:
        """Give up an engine that is lost, send a canary to one that should have one, and drop what came too late for
        what waits for this engine alone."""
        health = engine.health
        if health.loss is not None:
            return [
                Restart(engine.engine_id, health.loss),
                *self.engine_lost(engine.engine_id, now, was_restarted=True),
            ]
        effects: list[Effect] = [*self._refuse_late(engine.retries, now)] if engine.retries else []
        if health.wants_canary and engine.has_room(RequestClass.BULK):
            health.probed()
            canary = ScheduledBatch()
            self._put(canary, engine)
            effects.append(Probe(engine.engine_id, canary, health.num_failures))
        return effects

    def _put(self, batch: ScheduledBatch, engine: ReadyEngine) -> None:
        batch.batch_id = self._next_batch_id
        self._next_batch_id += 1
        engine.put(batch)

    def drain(self) -> list[Refuse]:
        """Take no more requests; finish those that have an engine, refuse the others."""
        self._is_draining = True
        without = [model for model in self.models if not model.engines]
        return [refusal for model in without for refusal in self._refuse_waiting(model, RequestRefusal.STOPPING)]

    def next_timer(self) -> float:
        """When `dispatch` must be called even if nothing happens; inf where never."""
        return min([model.next_timer for model in self.models if model.has_timer], default=math.inf)

    # How requests end

    def _refuse_overdue(self, model: Model, now: float) -> list[Refuse]:
        due = [request for deadlines in model.deadlines for request in deadlines.take_due(now)]
        refusals = [self._refuse(request, RequestRefusal.DEADLINE) for request in due]
        if model.gives_up_at <= now:
            refusals += self._refuse_waiting(model, RequestRefusal.NO_ENGINE, retry_after=self._policy.retry_after)
        return refusals

    def _refuse_hopeless(self, model: Model, now: float) -> list[Refuse]:
        """Refuse what waits but would be late even in the next batch: others can be in time in its place."""
        hopeless = model.take_hopeless(now, memory=self._policy.forecast_memory)
        return [self._refuse(request, RequestRefusal.TOO_LATE) for request in hopeless]

    def _refuse_late(self, batches: Iterable[ScheduledBatch], now: float) -> list[Refuse]:
        """Refuse what would have to wait again, but its deadline came while it was in the engine."""
        requests = {slice_.request.request_id: slice_.request for batch in batches for slice_ in batch.slices}
        late = [request for request in requests.values() if request.is_open and request.deadline <= now]
        return [self._refuse(request, RequestRefusal.DEADLINE) for request in late]

    def _refuse_waiting(self, model: Model, reason: RequestRefusal, *, retry_after: float = 0.0) -> list[Refuse]:
        return [self._refuse(request, reason, retry_after=retry_after) for request in self._waiting(model)]

    def _waiting(self, model: Model) -> list[ScheduledRequest]:
        """Requests of which something waits, oldest first."""
        if not model.waits:
            return []
        return [r for r in self._requests.values() if r.waiting_tokens and self.models[r.model] is model]

    def _refuse(
        self, request: ScheduledRequest, reason: RequestRefusal, *, index: int = -1, retry_after: float = 0.0
    ) -> Refuse:
        self._close(request)
        return Refuse(request.request_id, reason, index, retry_after)

    def _close(self, request: ScheduledRequest) -> None:
        request.is_open = False
        del self._requests[request.request_id]
        self.models[request.model].forget(request)


def after_failure(model: Model, batch: ScheduledBatch, *, engine: ReadyEngine, kind: EngineErrorKind) -> list[Slice]:
    """A batch failed on this engine, which goes on. Returns the sequences that have had their tries."""
    slices = model.reclaim([batch])
    if not slices:
        return []
    is_too_large = kind == EngineErrorKind.OUT_OF_MEMORY and batch.num_seqs > 1
    other = None if is_too_large else _another(model, batch, engine)
    if other is not None:
        model.pass_on(batch.elsewhere(slices, failed_on=engine.engine_id), other)
        return []
    if batch.num_seqs == 1:
        return slices
    model.retry([ScheduledBatch(part) for part in halves(slices)])
    return []


def _another(model: Model, batch: ScheduledBatch, engine: ReadyEngine) -> ReadyEngine | None:
    """The engine with the least to do that this batch has not been on, by preference one that is trusted; None after
    two, or where there is no other."""
    if batch.failed_on is not None:
        return None
    others = (one for one in model.engines if one is not engine and fits(one.limits, batch))
    return min(others, key=lambda one: (one.health.is_suspected, one.load(None)), default=None)


def after_death(model: Model, computing: Sequence[ScheduledBatch], staged: Sequence[ScheduledBatch]) -> list[Slice]:
    """An engine is gone that held these batches. Returns the sequences that were alone with it when it died."""
    model.requeue(model.reclaim(batch for batch in staged if not batch.is_suspect))
    to_blame: list[Slice] = []
    suspects = [model.reclaim([batch]) for batch in staged if batch.is_suspect]
    for batch in computing:
        slices = model.reclaim([batch])
        if batch.is_suspect and batch.num_seqs == 1:
            to_blame += slices
        elif batch.is_suspect:
            suspects += parts(slices, 1)
        else:
            suspects += [group for its_class in by_class(slices) for group in _groups(its_class)]
    model.retry([ScheduledBatch(group, is_suspect=True) for group in suspects if group])
    return to_blame


def _groups(slices: Sequence[Slice]) -> list[list[Slice]]:
    count = num_seqs(slices)
    return parts(slices, 1 if count <= _FEW_SUSPECTS else math.isqrt(count - 1) + 1)
