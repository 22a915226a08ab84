"""Drives a Scheduler as the batch manager's process does, under a clock of its own, and holds its invariants
after every step against what it saw go in and out."""

import collections.abc
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from batch_manager.messages import Policy, RequestRefusal
from batch_manager.scheduling.batches import Release, ScheduledBatch, ScheduledRequest, Slice
from batch_manager.scheduling.engines import Lane, ReadyEngine, in_lane
from batch_manager.scheduling.scheduler import Dispatch, Effect, Probe, Refuse, Restart, Scheduler
from engine.types import EngineErrorKind, EngineLimits, OutputKind
from wire.vocabulary import RequestClass

Sequence = tuple[int, int]  # request id, index in the request

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK


def limits(**changes: object) -> EngineLimits:
    """Small limits, so that small tests reach them."""
    fields: dict[str, object] = {"max_num_tokens": 100, "max_num_seqs": 16, "max_seqlen": 100}
    return EngineLimits(**(fields | changes))  # type: ignore[arg-type]


def sequences(slices: list[Slice]) -> list[Sequence]:
    """What a batch computes, row by row."""
    return [(slice_.request.request_id, at) for slice_ in slices for at in range(slice_.start, slice_.stop)]


def shared_of(seqlens: collections.abc.Sequence[int], share: float) -> list[int]:
    """What sequences may have in common with the one before, about this part of each."""
    before = [0, *seqlens[:-1]]
    return [min(int(share * own), own - 1, left) for own, left in zip(seqlens, before, strict=True)] if share else []


@dataclass
class FakeEngine:
    """What an engine holds, oldest first."""

    model: int
    limits: EngineLimits
    batches: list[ScheduledBatch] = field(default_factory=list)

    @property
    def computing(self) -> list[ScheduledBatch]:
        """Batches that could finish now."""
        if self.limits.overlaps:
            return self.batches
        if self.limits.puts_urgent_first:
            return self.urgent[: self.limits.streams] + self.others[: self.limits.streams]
        return self.batches[: self.limits.streams]

    @property
    def urgent(self) -> list[ScheduledBatch]:
        """Batches with interactive work."""
        return [batch for batch in self.batches if batch.is_urgent]

    @property
    def others(self) -> list[ScheduledBatch]:
        """Batches of bulk alone."""
        return [batch for batch in self.batches if not batch.is_urgent]


class Harness:
    """A scheduler, its fake engines, and a record of all that happened."""

    def __init__(self, policy: Policy | None = None, *, num_models: int = 1) -> None:
        self.now = 1000.0
        self.policy = policy or Policy()
        self.scheduler = Scheduler(self.policy, num_models=num_models, now=self.now)
        self.engines: dict[int, FakeEngine] = {}
        self.requests: dict[int, ScheduledRequest] = {}
        self.open: set[int] = set()
        self.finished: list[int] = []
        self.cancelled: set[int] = set()
        self.refused: dict[int, Refuse] = {}
        self.delivered: dict[int, set[int]] = defaultdict(set)
        self.dispatched: list[ScheduledBatch] = []
        self.restarted: list[Restart] = []
        self.num_failures = defaultdict[Sequence, int](int)  # of batches that each sequence was in
        self._never_dispatched: dict[tuple[int, OutputKind, RequestClass, int], list[Sequence]] = defaultdict(list)
        self._newest_is_suspect: dict[tuple[int, RequestClass], bool] = {}  # of the batches with work of a class
        self._had_suspects = [False] * num_models  # that waited when batches were formed last
        self.passed_tokens = defaultdict[int, int](int)  # by batch of bulk: of urgent ones sent to pass it
        self._without_bulk = defaultdict[int, int](int)  # batches of a model since bulk last had a part or did not wait

    # Events

    def submit(self, *seqlens: int, **options: Any) -> int:
        """A request comes; returns its id. `options`: see `offer`."""
        request_id = self.offer(*seqlens, **options)
        self.tick()
        return request_id

    def offer(
        self,
        *seqlens: int,
        share: float = 0.0,
        request_class: RequestClass = INTERACTIVE,
        outputs: OutputKind = OutputKind.POOLED,
        model: int = 0,
        timeout: float = math.inf,
        key: int = 0,
        weight: float = 1.0,
    ) -> int:
        """A request comes together with others: batches are not formed yet.

        share: about this part of each sequence is as in the one before
        """
        request_id = len(self.requests) + 1
        request = ScheduledRequest(
            request_id,
            seqlens,
            shared=shared_of(seqlens, share),
            model=model,
            outputs=outputs,
            request_class=request_class,
            deadline=self.now + timeout,
            key=key,
            weight=weight,
        )
        self.requests[request_id] = request
        self.open.add(request_id)
        line = self._never_dispatched[model, outputs, request_class, key]
        line += [(request_id, at) for at in range(len(seqlens))]
        self._apply(self.scheduler.submit(request, self.now))
        return request_id

    def cancel(self, request_id: int) -> None:
        """The client of a request left."""
        self.scheduler.cancel(request_id)
        if request_id in self.open:
            self.cancelled.add(request_id)
            self._close(request_id)
        self.tick()

    def ready(self, engine_id: int = 0, *, model: int = 0, engine_limits: EngineLimits | None = None) -> None:
        """An engine is ready."""
        self.engines[engine_id] = FakeEngine(model, engine_limits or limits())
        self._apply(
            self.scheduler.engine_ready(engine_id, model=model, limits=self.engines[engine_id].limits, now=self.now)
        )
        self.tick()

    def lose(self, engine_id: int = 0) -> None:
        """An engine dies."""
        self.engines.pop(engine_id, None)
        self._apply(self.scheduler.engine_lost(engine_id, self.now))
        self.tick()

    def done(self, engine_id: int = 0, *, which: int = 0, seconds: float = 0.01) -> None:
        """One of the batches that an engine computes is finished."""
        batch = self.engines[engine_id].computing[which]
        self.engines[engine_id].batches.remove(batch)
        rows = sequences(batch.slices)
        deliveries = self.scheduler.batch_done(engine_id, batch.batch_id, compute_seconds=seconds, now=self.now)
        for delivery in deliveries:
            request_id, start, stop = delivery.slice.request.request_id, delivery.slice.start, delivery.slice.stop
            places = list(range(start, stop))
            assert rows[delivery.at : delivery.at + stop - start] == [(request_id, at) for at in places], "in place"
            assert request_id in self.open, "rows for nobody"
            assert not self.delivered[request_id].intersection(places), "delivered twice"
            self.delivered[request_id].update(places)
            is_complete = len(self.delivered[request_id]) == self.requests[request_id].num_seqs
            assert delivery.is_last == is_complete
            if is_complete:
                self.finished.append(request_id)
                self._close(request_id)
        self.tick()

    def fail(self, engine_id: int = 0, *, kind: EngineErrorKind = EngineErrorKind.FAILED, which: int = 0) -> None:
        """One of the batches that an engine computes has failed."""
        batch = self.engines[engine_id].computing[which]
        self.engines[engine_id].batches.remove(batch)
        if kind == EngineErrorKind.FATAL:
            del self.engines[engine_id]
        else:
            for one in sequences(batch.slices):
                self.num_failures[one] += 1
        self._apply(self.scheduler.batch_failed(engine_id, batch.batch_id, kind=kind, now=self.now))
        self.tick()

    def advance(self, seconds: float) -> None:
        """Time passes; the timer is served if it is due."""
        self.now += seconds
        if self.scheduler.next_timer() <= self.now:
            self.tick()
            assert self.scheduler.next_timer() > self.now, "the timer does not move"

    def drain(self) -> None:
        """No more requests are taken."""
        self._apply(self.scheduler.drain())
        self.tick()

    def tick(self) -> None:
        """Batches are formed."""
        self._had_suspects = [self._suspects_wait(model) for model in range(len(self.scheduler.models))]
        self._apply(self.scheduler.dispatch(self.now))
        self.check()

    # What is seen

    def batch(self, engine_id: int = 0) -> list[Sequence]:
        """What the newest batch of an engine computes."""
        return sequences(self.engines[engine_id].batches[-1].slices)

    def refusal(self, request_id: int) -> tuple[RequestRefusal, int]:
        """Why a request was refused, and which sequence is to blame."""
        return self.refused[request_id].reason, self.refused[request_id].index

    def queued_tokens(self, request_class: RequestClass, model: int = 0) -> int:
        """What the scheduler says is queued."""
        return self.scheduler.models[model].queued_tokens[request_class]

    def finish_all(self, max_batches: int = 100_000) -> None:
        """Let the engines compute until there is nothing left to do."""
        for _ in range(max_batches):
            busy = [engine_id for engine_id, engine in self.engines.items() if engine.batches]
            if not busy:
                return
            self.done(busy[0])
        raise AssertionError("the engines never come to an end")

    # How it is checked

    def _apply(self, effects: list[Effect] | list[Refuse]) -> None:
        for effect in effects:
            match effect:
                case Dispatch():
                    self._check_dispatch(effect)
                case Probe():
                    assert effect.batch.is_canary
                    self._put(effect.batch, self.engines[effect.engine_id])
                case Restart():
                    self.restarted.append(effect)
                    self.engines.pop(effect.engine_id, None)  # it has ended already, where it said so
                case Refuse():
                    assert effect.request_id in self.open, "refused twice, or after an answer"
                    self.refused[effect.request_id] = effect
                    self._close(effect.request_id)

    def _close(self, request_id: int) -> None:
        self.open.remove(request_id)
        request = self.requests[request_id]
        key = (request.model, request.outputs, request.request_class, request.key)
        self._never_dispatched[key] = [seq for seq in self._never_dispatched[key] if seq[0] != request_id]

    def _check_dispatch(self, dispatch: Dispatch) -> None:
        batch, engine = dispatch.batch, self.engines[dispatch.engine_id]
        in_batch = sequences(batch.slices)
        requests = [slice_.request for slice_ in batch.slices]
        assert in_batch, "an empty batch"
        assert {(request.model, request.outputs) for request in requests} == {(engine.model, batch.outputs)}
        assert all(request.request_id in self.open and request.deadline > self.now for request in requests)
        assert batch.num_seqs == len(in_batch) <= engine.limits.max_num_seqs
        assert batch.sent_tokens == sum(map(self._seqlen, in_batch)) <= 4 * engine.limits.max_num_tokens
        num_tokens = sum(map(self._own, in_batch)) + sum(
            self._shared((s.request.request_id, s.start)) for s in batch.slices
        )
        assert batch.num_tokens == num_tokens <= engine.limits.max_num_tokens
        is_elsewhere = batch.release is Release.ELSEWHERE
        most = self.policy.max_batch_tokens or engine.limits.target_num_tokens or engine.limits.max_num_tokens
        most_of_group = min(engine.limits.group_tokens, self.policy.max_batch_tokens or engine.limits.group_tokens)
        is_group = batch.num_tokens <= most_of_group and batch.sent_tokens > batch.num_tokens
        assert (
            batch.num_tokens <= most
            or batch.num_seqs == 1
            or is_group
            or is_elsewhere
            or batch.release is Release.RETRY
        )
        assert not (is_group and batch.num_tokens > most and batch.is_urgent), "queries wait for a group"
        assert max(map(self._seqlen, in_batch)) <= engine.limits.max_seqlen
        assert not set(in_batch).intersection(self._in_flight()), "in two batches at once"
        assert not any(at in self.delivered[request_id] for request_id, at in in_batch)
        assert dispatch.engine_id in self._may_compute(engine.model), "a suspected engine gets work"
        assert is_elsewhere == (batch.failed_on is not None)
        assert batch.failed_on != dispatch.engine_id, "the same engine again"
        self._check_order(engine.model, batch.outputs, in_batch)
        if not is_elsewhere:
            if self.has_lanes(engine.model):
                self._check_lane(engine, batch)
            else:
                self._check_starvation(engine, in_batch)
            self._check_suspects(engine.model, batch)
        self._put(batch, engine)
        self.dispatched.append(batch)

    def _put(self, batch: ScheduledBatch, engine: FakeEngine) -> None:
        engine.batches.append(batch)
        assert len(engine.batches) <= engine.limits.depth * (1 + engine.limits.puts_urgent_first)
        assert len(engine.batches) == 1 or not any(held.is_suspect for held in engine.batches)

    def _may_compute(self, model: int) -> set[int]:
        """Engines that may get work: those that are trusted, or all where none is."""
        engines = self.scheduler.models[model].engines
        trusted = {engine.engine_id for engine in engines if not engine.health.is_suspected}
        return trusted or {engine.engine_id for engine in engines}

    def _check_order(self, model: int, outputs: OutputKind, in_batch: list[Sequence]) -> None:
        """Nothing is dispatched for the first time before what came earlier in its class from the same key."""
        for line in [line for key, line in self._never_dispatched.items() if key[:2] == (model, outputs)]:
            first_time = [one for one in in_batch if one in line]
            assert line[: len(first_time)] == first_time, "out of order"
            del line[: len(first_time)]

    def has_lanes(self, model: int) -> bool:
        """Whether each class has a place of its own in the engines of a model."""
        engines = [engine for engine in self.engines.values() if engine.model == model]
        return all(one.limits.puts_urgent_first for one in engines) and not self._had_suspects[model]

    def _suspects_wait(self, model: int) -> bool:
        queues = self.scheduler.models[model].backlog._queues.values()
        return any(queue.oldest_suspect < math.inf for of_kind in queues for queue in of_kind)

    def _check_lane(self, engine: FakeEngine, batch: ScheduledBatch) -> None:
        """There is room for it, and what it passes gets its share."""
        classes = {slice_.request.request_class for slice_ in batch.slices}
        assert batch.is_urgent == (INTERACTIVE in classes)
        assert len(classes) == 1 or not engine.limits.overlaps, "bulk beside a query"
        assert len(engine.urgent if batch.is_urgent else engine.others) < engine.limits.depth
        if batch.is_urgent and engine.others:
            share, oldest = self.policy.bulk_share, engine.others[0]
            assert share * self.passed_tokens[oldest.batch_id] < (1 - share) * oldest.num_tokens, "bulk starves"
            self.passed_tokens[oldest.batch_id] += batch.num_tokens

    def _check_starvation(self, engine: FakeEngine, in_batch: list[Sequence]) -> None:
        has_bulk = any(self.requests[request_id].request_class == BULK for request_id, _ in in_batch)
        bulk = self.scheduler.models[engine.model].backlog.num_tokens[BULK]
        self._without_bulk[engine.model] = 0 if has_bulk or not bulk else self._without_bulk[engine.model] + 1
        known = [limit for limit in (self.policy.max_batch_tokens, engine.limits.target_num_tokens // 8) if limit]
        longest = engine.limits.max_seqlen / min([self.policy.min_batch_tokens, *known])
        assert self._without_bulk[engine.model] <= (1 + longest) / self.policy.bulk_share + 1, "bulk starves"

    def _check_suspects(self, model: int, batch: ScheduledBatch) -> None:
        """In no class two suspects in a row while new work of it waits, nor two other batches while suspects do."""
        for request_class in {slice_.request.request_class for slice_ in batch.slices}:
            lines = [line for key, line in self._never_dispatched.items() if (key[0], key[2]) == (model, request_class)]
            if self._newest_is_suspect.get((model, request_class)) is True and batch.is_suspect:
                assert not any(lines), "new work waits for suspects"
            if self._newest_is_suspect.get((model, request_class)) is False and not batch.is_suspect:
                queues = self.scheduler.models[model].backlog._queues.values()
                assert all(queue[request_class].oldest_suspect == math.inf for queue in queues), "suspects are passed"
            self._newest_is_suspect[model, request_class] = batch.is_suspect

    def _seqlen(self, one: Sequence) -> int:
        cu_seqlens = self.requests[one[0]].cu_seqlens
        return cu_seqlens[one[1] + 1] - cu_seqlens[one[1]]

    def _shared(self, one: Sequence) -> int:
        shared = self.requests[one[0]].shared
        return shared[one[1]] if shared else 0

    def _own(self, one: Sequence) -> int:
        return self._seqlen(one) - self._shared(one)

    def _in_flight(self) -> list[Sequence]:
        batches = [batch for engine in self.engines.values() for batch in engine.batches]
        batches += [batch for engine in self._known_engines() for batch in engine.retries]  # promised to an engine
        return [one for batch in batches for one in sequences(batch.slices)]

    def _known_engines(self) -> list[ReadyEngine]:
        return [engine for model in self.scheduler.models for engine in model.engines]

    def check(self) -> None:
        """What holds between events."""
        assert self.scheduler.num_requests == len(self.open)
        in_flight = self._in_flight()
        assert len(in_flight) == len(set(in_flight))
        held = defaultdict[tuple[int, int], int](int)  # by model and class
        for one in in_flight:
            request = self.requests[one[0]]
            held[request.model, request.request_class] += self._own(one)
        elsewhere = {*in_flight, *((request_id, at) for request_id in self.open for at in self.delivered[request_id])}
        waits = set()
        for request_id in self.open:
            request = self.requests[request_id]
            waiting = [(request_id, at) for at in range(request.num_seqs) if (request_id, at) not in elsewhere]
            num_tokens = sum(map(self._own, waiting))
            assert request.waiting_tokens == num_tokens, "lost or counted twice"
            held[request.model, request.request_class] += num_tokens
            if waiting:
                waits.add(request.model)
        for index, model in enumerate(self.scheduler.models):
            assert model.queued_tokens == [held[index, request_class] for request_class in RequestClass]
            assert model.waits == (index in waits)
        able = [engine for engine in self._known_engines() if engine.engine_id in self._may_compute(engine.model)]
        assert not {engine.model for engine in able if not engine.batches} & waits, "an engine idles while work waits"
        for engine in able:
            self._check_room(engine)

    def _check_room(self, engine: ReadyEngine) -> None:
        """What could go to this engine has gone."""
        if self.has_lanes(engine.model):
            bulk = self.scheduler.models[engine.model].backlog.num_tokens[BULK]
            assert not bulk or engine.lane(BULK) or engine.lane(None)[0].is_suspect, "bulk waits beside an empty lane"
        elif engine.limits.puts_urgent_first:
            return  # there may have been suspects for a part of the time
        lanes: tuple[Lane, ...] = tuple(RequestClass) if engine.limits.puts_urgent_first else (None,)
        for lane in lanes:
            is_bulks_turn = lane == INTERACTIVE and engine.owes_bulk(self.policy.bulk_share)
            waits = in_lane(engine.retries, lane) and engine.has_room(lane) and not is_bulks_turn
            assert not waits, "an engine idles while a retry waits"


def with_engine(
    policy: Policy | None = None, *, engine_limits: EngineLimits | None = None, **its_limits: object
) -> Harness:
    """A harness with one ready engine, of these limits or with these changes of `limits`."""
    harness = Harness(policy)
    harness.ready(engine_limits=engine_limits or limits(**its_limits))
    return harness
