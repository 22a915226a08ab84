"""The batch manager's process: connections to frontends and engines, the shared page and a clock around the scheduler.

It does what the scheduler decides: it keeps the ids of waiting requests, sends batches and puts rows into answers. It
knows connections and bytes; what goes where and when is the scheduler's. `Quarantine` remembers the inputs that have
taken engines down, so that a client that sends one again takes down no more.
"""

import asyncio
import hashlib
import logging
import math
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from batch_manager import messages
from batch_manager.engine_link import EngineLink, Shapes
from batch_manager.in_flight import MAX_JOINED_BYTES, HeldRequest, InFlight, Waiter, pack
from batch_manager.messages import (
    EngineAddress,
    ManagerStart,
    Policy,
    RequestRefusal,
    RequestRefused,
    RequestResults,
    Submission,
)
from batch_manager.scheduling.batches import Release, ScheduledBatch, ScheduledRequest
from batch_manager.scheduling.engines import Loss
from batch_manager.scheduling.model import Model
from batch_manager.scheduling.scheduler import Dispatch, Effect, Probe, Refuse, Restart, Scheduler
from engine.types import EngineErrorKind, EngineLimits, Results
from wire import connection
from wire.child import Child, run
from wire.connection import Connection
from wire.frames import PayloadTooLarge
from wire.metrics import POWERS, RATIOS, Recorder
from wire.page import Page
from wire.parts import Part, cut
from wire.vocabulary import RequestClass

QUARANTINE_SECONDS = 600.0  # for which an input is refused
MAX_QUARANTINED = 1024  # remembered at most; the oldest goes first

logger = logging.getLogger("embedline.batch_manager")

_Key = tuple[int, bytes]  # tokens of the sequence, and the hash of its model, ids and types

_RETRIES = {Release.RETRY: "failed", Release.ELSEWHERE: "elsewhere", Release.SUSPECT: "suspect"}
_LOSSES = {
    Loss.CANARY: "it failed its canary",
    Loss.REFUTED: "batch after batch failed on it that other engines computed",
}


class Manager:
    """The batch manager between its frontends and its engines.

    However many frames come in one tick of the event loop, batches are formed once, after all of them.
    """

    def __init__(self, models: Sequence[str], policy: Policy, *, page: Page, index: int, metrics: Recorder) -> None:
        self._loop = asyncio.get_running_loop()
        self._models = models
        self._metrics = metrics
        self._batch_metrics = [_BatchMetrics(metrics, name) for name in models]
        # an engine may still hold batches of this process's predecessor: no id of theirs may be given again
        first_batch_id = time.monotonic_ns()
        self._scheduler = Scheduler(policy, num_models=len(models), now=time.monotonic(), first_batch_id=first_batch_id)
        self.publisher = Publisher(self._scheduler.models, page, index=index)
        self._num_requests = 0
        self._in_flight = InFlight()
        self._held = self._in_flight.by_id
        self._quarantine = Quarantine()
        self._engines: dict[int, EngineLink] = {}  # by the number that the supervisor gives the engine
        self._engine_models: dict[int, int] = {}
        self._shapes: list[Shapes] = [{} for _ in models]
        self._tick_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._empty = asyncio.Event()  # no requests are held
        self._alone = asyncio.Event()  # no frontends are connected
        name = f"batch manager {index}"
        metrics.watch("embedline_queue_sequences", name, level=lambda: self._scheduler.num_sequences)
        metrics.watch("embedline_engines_suspected", name, level=lambda: self._scheduler.num_suspected)

    def add_engine(self, engine: EngineAddress) -> None:
        """Begin to connect to an engine."""
        link = EngineLink(engine.path, engine.index, shapes=self._shapes[engine.model], events=self)
        self._engines[engine.index] = link
        self._engine_models[engine.index] = engine.model
        link.open()

    async def drain(self) -> None:
        """Take no more requests; return once those that are held are answered or refused."""
        self._empty.clear()
        self._apply(self._scheduler.drain(), time.monotonic())
        self._changed()
        await self._empty.wait()

    async def close(self) -> None:
        """Let go of engines and frontends; return once what was sent to the frontends has left."""
        if self._timer is not None:
            self._timer.cancel()
        for link in self._engines.values():
            link.close()
        if self._in_flight.frontends:
            for frontend in self._in_flight.frontends:
                frontend.close()
            await self._alone.wait()

    # Frontends

    def frontend_made(self, connection: Connection) -> None:
        """A frontend connected."""
        self._in_flight.add_frontend(connection)
        self._alone.clear()

    def frontend_lost(self, connection: Connection) -> None:
        """A frontend is gone; it waits for nothing any more."""
        for request in self._in_flight.remove_frontend(connection):
            self._scheduler.cancel(request.request_id)
        self._changed()
        if not self._in_flight.frontends:
            self._alone.set()

    def frontend_frame(self, connection: Connection, kind: int, frame_id: int, payload: memoryview) -> None:
        """A frontend sent something."""
        if kind == messages.SUBMIT:
            self._submit(connection, frame_id, payload)
        elif kind == messages.CANCEL:
            request = self._in_flight.leave(connection, frame_id)
            if request is not None:
                self._scheduler.cancel(request.request_id)
                self._changed()
        elif kind == messages.REFUTED:
            self._scheduler.refuted(messages.decode_refuted(payload))
            self._changed()

    def _submit(self, connection: Connection, frame_id: int, payload: memoryview) -> None:
        submission, now = messages.decode_submission(payload), time.monotonic()
        assert submission.model < len(self._models), "the model is one of those served"
        work = messages.work_of(payload) if len(payload) <= MAX_JOINED_BYTES else b""
        twin = self._in_flight.join(work, connection, frame_id, now)
        if twin is not None:
            self._scheduler.extend(twin, submission.deadline)
            self._metrics.count("embedline_joined_requests_total", self._models[submission.model])
            return
        self._num_requests += 1
        request = ScheduledRequest(
            self._num_requests,
            submission.seqlens,
            shared=submission.shared,
            model=submission.model,
            outputs=submission.outputs,
            request_class=submission.request_class,
            deadline=submission.deadline,
            key=submission.key,
            weight=submission.weight,
        )
        assert len(submission.token_ids) == 4 * request.cu_seqlens[-1], "every token has an id"
        waiter = Waiter(connection, frame_id, now)
        self._in_flight.add(waiter, HeldRequest(waiter, submission=submission, request=request, work=work))
        index = self._quarantine.find(submission, now)
        if index is not None:
            self._metrics.count("embedline_quarantined_total", self._models[submission.model])
            self._refuse(Refuse(request.request_id, RequestRefusal.POISON, index))
            return
        self._apply(self._scheduler.submit(request, now), now)
        self._changed()

    # Engines

    def engine_ready(self, engine_id: int, limits: EngineLimits) -> None:
        """An engine takes batches from now on."""
        logger.info("engine %d is ready", engine_id)
        now, model = time.monotonic(), self._engine_models[engine_id]
        self._apply(self._scheduler.engine_ready(engine_id, model=model, limits=limits, now=now), now)
        self._changed()

    def engine_lost(self, engine_id: int, num_batches: int) -> None:
        """An engine's connection is gone; what it held goes to another, or waits."""
        now = time.monotonic()
        if num_batches:
            name = self._models[self._engine_models[engine_id]]
            self._metrics.count("embedline_batch_failures_total", name, "lost", by=num_batches)
        self._apply(self._scheduler.engine_lost(engine_id, now), now)
        self._changed()

    def batch_failed(self, engine_id: int, batch: ScheduledBatch, kind: EngineErrorKind) -> None:
        """A batch gave no rows."""
        name = self._models[self._engine_models[engine_id]]
        if batch.is_canary:
            self._metrics.count("embedline_canaries_total", name, "failed")
        else:
            self._metrics.count("embedline_batch_failures_total", name, kind.name.lower())
        now = time.monotonic()
        self._apply(self._scheduler.batch_failed(engine_id, batch.batch_id, kind=kind, now=now), now)
        self._changed()

    def batch_done(self, engine_id: int, batch: ScheduledBatch, results: Results, compute_seconds: float) -> None:
        """The rows of a batch."""
        model = self._engine_models[engine_id]
        if batch.is_canary:
            self._metrics.count("embedline_canaries_total", self._models[model], "passed")
        else:
            self._batch_metrics[model].done(batch, compute_seconds)
        deliveries = self._scheduler.batch_done(
            engine_id, batch.batch_id, compute_seconds=compute_seconds, now=time.monotonic()
        )
        num_wasted = batch.num_tokens
        for delivery in deliveries:
            slice_ = delivery.slice
            num_wasted -= slice_.num_tokens
            held = self._held[slice_.request.request_id]
            held.put(results, delivery.at, slice_, num_seqs=batch.num_seqs)
            held.compute_seconds += compute_seconds
            if delivery.is_last:
                self._answer(held)
        if num_wasted:
            self._metrics.count("embedline_wasted_tokens_total", self._models[model], by=num_wasted)
        self._changed()

    # Orders of the scheduler

    def _changed(self) -> None:
        if not self._tick_is_due:
            self._tick_is_due = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._tick_is_due = False
        now = time.monotonic()
        self._apply(self._scheduler.dispatch(now), now)
        self.publisher.publish(now)
        self._set_timer(self._scheduler.next_timer(), now)
        if not self._scheduler.num_requests:
            self._empty.set()

    def _set_timer(self, timer_at: float, now: float) -> None:
        """Wake up at that time at the latest; an earlier timer is left to find that nothing is due yet."""
        if timer_at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = timer_at
        self._timer = self._loop.call_later(timer_at - now, self._timer_came)

    def _timer_came(self) -> None:
        self._timer_at = math.inf
        self._tick()

    def _apply(self, effects: Sequence[Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case Dispatch():
                    self._dispatch(effect, now)
                case Refuse():
                    if effect.reason is RequestRefusal.POISON:
                        self._quarantine.add(self._held[effect.request_id].submission, effect.index, now)
                    self._refuse(effect)
                case Probe():
                    self._probe(effect)
                case Restart():
                    self._restart(effect)

    def _dispatch(self, dispatch: Dispatch, now: float) -> None:
        batch = dispatch.batch
        for slice_ in batch.slices:
            self._held[slice_.request.request_id].queue_seconds = now - slice_.request.arrived
        self._engines[dispatch.engine_id].send(batch, *pack(batch, self._held))
        model = self._engine_models[dispatch.engine_id]
        self._batch_metrics[model].released[batch.release].value += 1
        if batch.release in _RETRIES:
            name, why = self._models[model], _RETRIES[batch.release]
            self._metrics.count("embedline_retried_sequences_total", name, why, by=batch.num_seqs)

    def _probe(self, probe: Probe) -> None:
        if probe.num_failures:
            logger.warning(
                "engine %d failed %d batches in a row: it gets a canary, and no work while another engine serves",
                probe.engine_id,
                probe.num_failures,
            )
        self._engines[probe.engine_id].send_canary(probe.batch)

    def _restart(self, restart: Restart) -> None:
        logger.error("engine %d is restarted: %s", restart.engine_id, _LOSSES[restart.loss])
        name = self._models[self._engine_models[restart.engine_id]]
        self._metrics.count("embedline_engine_losses_total", name, restart.loss)
        self._engines[restart.engine_id].restart()

    def _refuse(self, refuse: Refuse) -> None:
        held = self._in_flight.remove(refuse.request_id)
        self._metrics.count("embedline_refused_total", refuse.reason.name.lower())
        if refuse.reason is RequestRefusal.NON_FINITE:
            self._metrics.count("embedline_nonfinite_rows_total", self._models[held.request.model])
        refused = RequestRefused(refuse.reason, refuse.index, retry_after=refuse.retry_after)
        for waiter in held.waiters.values():
            waiter.connection.send(messages.REFUSED, waiter.frame_id, messages.encode_refused(refused))

    def _answer(self, held: HeldRequest) -> None:
        results = held.results()
        try:
            for waiter in held.waiters.values():
                queue_seconds = max(0.0, held.queue_seconds - (waiter.arrived - held.request.arrived))
                answer = RequestResults(results, queue_seconds, held.compute_seconds, waiter.has_joined)
                waiter.connection.send(messages.ANSWER, waiter.frame_id, messages.encode_answer(answer))
        except PayloadTooLarge as error:
            logger.error("an answer can't be sent: %s", error)
            self._refuse(Refuse(held.request.request_id, RequestRefusal.ANSWER_TOO_LARGE))
            return
        self._in_flight.remove(held.request.request_id)
        metrics = self._batch_metrics[held.request.model]
        metrics.queue_seconds[held.request.request_class].observe(held.queue_seconds)


class _BatchMetrics:
    """What is counted of every batch of one model."""

    def __init__(self, metrics: Recorder, model: str) -> None:
        self.released = {
            release: metrics.counter("embedline_batch_release_total", model, release) for release in Release
        }
        self.queue_seconds = [
            metrics.histogram("embedline_queue_duration_seconds", model, each.name.lower()) for each in RequestClass
        ]
        self._computed = metrics.counter("embedline_computed_tokens_total", model)
        self._tokens = metrics.histogram("embedline_batch_tokens", model, edges=POWERS)
        self._seqs = metrics.histogram("embedline_batch_sequences", model, edges=POWERS)
        self._fill_ratio = metrics.histogram("embedline_batch_fill_ratio", model, edges=RATIOS)
        self._seconds = metrics.histogram("embedline_engine_duration_seconds", model)

    def done(self, batch: ScheduledBatch, compute_seconds: float) -> None:
        """A batch has its rows."""
        self._computed.value += batch.num_tokens
        self._tokens.observe(batch.num_tokens)
        self._seqs.observe(batch.num_seqs)
        self._fill_ratio.observe(batch.num_tokens / batch.max_tokens)
        self._seconds.observe(compute_seconds)


class Quarantine:
    """Hashes of sequences, each for QUARANTINE_SECONDS. Holds no ids, and costs nothing while it is empty."""

    def __init__(self) -> None:
        self._until: OrderedDict[_Key, float] = OrderedDict()  # time.monotonic() seconds, the soonest first
        self._seqlens: Counter[int] = Counter()  # of those: other sequences need not be hashed

    def add(self, submission: Submission, index: int, now: float) -> None:
        """Sequence `index` of this request took an engine down when it was alone with it."""
        seqlen = submission.seqlens[index]
        key = (seqlen, _digest(submission, index, sum(submission.seqlens[:index])))
        logger.error("an input of %d tokens takes engines down: it is refused for %d s", seqlen, QUARANTINE_SECONDS)
        if key not in self._until:
            self._seqlens[seqlen] += 1
        self._until[key] = now + QUARANTINE_SECONDS
        self._until.move_to_end(key)
        if len(self._until) > MAX_QUARANTINED:
            self._drop_first()

    def find(self, submission: Submission, now: float) -> int | None:
        """Find the sequence of a request that is in quarantine; None where none is."""
        while self._until and next(iter(self._until.values())) <= now:
            self._drop_first()
        if not self._until:
            return None
        start = 0
        for index, seqlen in enumerate(submission.seqlens):
            if seqlen in self._seqlens and (seqlen, _digest(submission, index, start)) in self._until:
                return index
            start += seqlen
        return None

    def _drop_first(self) -> None:
        (seqlen, _), _ = self._until.popitem(last=False)
        self._seqlens[seqlen] -= 1
        if not self._seqlens[seqlen]:
            del self._seqlens[seqlen]


def _digest(submission: Submission, index: int, start: int) -> bytes:
    """The hash of sequence `index`, before which there are so many tokens."""
    stop = start + submission.seqlens[index]
    digest = hashlib.blake2b(submission.model.to_bytes(4, "little"), digest_size=16)
    digest.update(memoryview(submission.token_ids)[4 * start : 4 * stop])
    for part, values in sorted(cut(submission.parts, (index, start), (index + 1, stop)).items()):
        if part is not Part.SHARED and any(values):  # all zero is the same as none, and what stands before is no part
            digest.update(bytes([part]))
            digest.update(values)
    return digest.digest()


class Publisher:
    """Writes the cells of batch manager `index`, through memoryviews: numpy takes three times as long for a number."""

    def __init__(self, models: Sequence[Model], page: Page, *, index: int) -> None:
        self._models = [_ModelCells(model, page, index, number) for number, model in enumerate(models)]
        self._published_at = _floats(page.published_at)
        self._index = index

    def publish(self, now: float) -> None:
        """How much waits, since when, and how fast it goes."""
        for model in self._models:
            model.publish(now)
        self._published_at[self._index] = now


class _ModelCells:
    """The cells of one model."""

    def __init__(self, model: Model, page: Page, index: int, number: int) -> None:
        self._model = model
        self._number = number
        at = (index, number)
        self._queued, self._computing = memoryview(page.queued_tokens[at]), memoryview(page.computing_tokens[at])
        self._free_at, self._oldest_since = _floats(page.free_at[at]), _floats(page.oldest_since[at])
        self._rates, self._batch_seconds = _floats(page.tokens_per_second[index]), _floats(page.batch_seconds[index])
        self._streams, self._engines_ready = memoryview(page.streams[index]), memoryview(page.engines_ready[index])
        self._last_batch_at = _floats(page.last_batch_at[index])

    def publish(self, now: float) -> None:
        model, number = self._model, self._number
        backlog, free_at = model.backlog, model.free_at_by_class(now)
        (queries, bulk), (waiting_queries, waiting_bulk) = model.queued_tokens, backlog.num_tokens
        self._queued[0], self._queued[1] = queries, bulk
        self._computing[0], self._computing[1] = queries - waiting_queries, bulk - waiting_bulk
        self._free_at[0], self._free_at[1] = free_at
        self._oldest_since[0] = backlog.oldest(RequestClass.INTERACTIVE) if waiting_queries else 0.0
        self._oldest_since[1] = backlog.oldest(RequestClass.BULK) if waiting_bulk else 0.0
        if rate := model.tokens_per_second:  # else what the predecessor of this process found is the best guess
            self._rates[number] = rate
            self._streams[number] = model.num_streams
            self._batch_seconds[number] = model.batch_seconds(now)
        self._engines_ready[number] = len(model.engines)
        self._last_batch_at[number] = model.last_batch_at


def _floats(cells: NDArray[np.float64]) -> "memoryview[float]":
    return cells.data.cast("B").cast("d")


def begin(child: Child, start: ManagerStart, page: Page) -> Manager:
    """The batch manager of this process, which connects to its engines and shows with each heartbeat that it runs."""
    manager = Manager(start.models, start.policy, page=page, index=child.index, metrics=child.metrics)
    child.on_beat = lambda: manager.publisher.publish(time.monotonic())
    for engine in start.engines:
        manager.add_engine(engine)
    return manager


async def serve(child: Child, start: ManagerStart) -> None:
    """Serve frontends until STOP; then finish or refuse the requests that are held."""
    assert start.listener_fd is not None, "a process of its own has a socket"
    manager = begin(child, start, Page.attach(start.page_fd))
    server = await connection.serve(
        socket.socket(fileno=start.listener_fd),
        manager.frontend_frame,
        manager.frontend_made,
        manager.frontend_lost,
    )
    child.ready()
    try:
        await child.stopping.wait()
        await manager.drain()
    finally:
        server.close()
        await manager.close()


if __name__ == "__main__":
    run(serve, ManagerStart)
