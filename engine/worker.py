"""The engine process: one model on one device, for one batch manager at a time. Can be imported with numpy alone.

Three threads, so that it can receive batches and answer the supervisor while a batch computes:
    main      the control channel: START, heartbeats, STOP
    submit    accepts the batch manager's connection, reads BATCH frames, submits them; a batch that is alone in the
              engine may be computed and answered here, without the time that waking other threads takes
    collect   collects finished batches and sends RESULT or FAILED to the sender of the batch

While the main thread loads a model, a thread of its own tells the supervisor that the process lives.
"""

import dataclasses
import gc
import logging
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from engine import messages, registry
from engine.machine import host
from engine.messages import EngineStart
from engine.selftest.warmup import Canary, warm_up
from engine.types import Batch, Engine, EngineClosed, EngineError, EngineErrorKind, EngineLimits, ModelError, Results
from wire import control
from wire.blocking import BlockingConnection
from wire.control import Json, ProcessStart
from wire.frames import PayloadTooLarge, ProtocolError
from wire.process import begin, settle

_ALONE = 0  # in place of a ticket; engines count them from 1
logger = logging.getLogger("embedline.engine")


@dataclass(slots=True)
class _BatchInEngine:
    """A batch inside the engine."""

    connection: BlockingConnection
    frame_id: int
    num_tokens: int
    is_urgent: bool
    submitted: float  # time.monotonic() seconds
    began: float = 0.0  # likewise; 0 = no stream is free for it yet
    is_canary: bool = False
    passed_tokens: int = 0  # of urgent batches that were finished since it began


class Worker:
    """Moves batches between a connection and an engine."""

    def __init__(
        self,
        engine: Engine,
        listener: socket.socket,
        *,
        limits: EngineLimits,
        canary: Canary,
        spin_seconds: float = 0.0,
    ) -> None:
        self._engine = engine
        self._spin_seconds = spin_seconds
        self._canary = canary
        self._listener = listener
        self._limits = limits  # the engine's, with the measurements of the warm-up
        self._held: dict[int, _BatchInEngine] = {}  # by ticket; insertion order is submission order
        self._lock = threading.Lock()  # guards `_held`
        self._noted = threading.Condition(self._lock)  # notified when a ticket is noted
        # Both threads answer. What is computed alone is computed in here: then `collect` has nothing to send, and does
        # not end before the answer is sent.
        self._sending = threading.RLock()

    def start(self) -> threading.Thread:
        """Start both threads and return the one that ends when the engine is closed."""
        threading.Thread(target=self._submit_forever, name="submit", daemon=True).start()
        collector = threading.Thread(target=self._collect_forever, name="collect", daemon=True)
        collector.start()
        return collector

    def busy(self) -> Json | None:
        """The batch that has computed for longest, since when (time.monotonic seconds), and what was computed since."""
        with self._lock:
            running = [in_engine for in_engine in self._held.values() if in_engine.began]
        if not running:
            return None
        oldest = min(running, key=lambda in_engine: in_engine.began)
        num_tokens, streams = oldest.num_tokens + oldest.passed_tokens, self._limits.streams
        return {"batch": oldest.frame_id, "tokens": num_tokens, "since": oldest.began, "streams": streams}

    def holds(self) -> Json:
        """The contents of the engine, for an operator who asks."""
        with self._lock:
            num_batches = len(self._held)
        return {"batches": num_batches, "busy": self.busy()}

    def _submit_forever(self) -> None:
        while True:
            channel, _ = self._listener.accept()
            with channel:
                try:
                    self._serve(BlockingConnection(channel))
                except (EOFError, OSError):  # also a peer that has left before it was accepted
                    logger.info("the batch manager has left; waiting for the next one")
                except ProtocolError as error:
                    logger.error("connection cut: %s", error)

    def _serve(self, connection: BlockingConnection) -> None:
        connection.send(messages.READY, 0, messages.encode_ready(self._engine.info, self._limits))
        is_alone = True  # nothing came while the batch before was computed
        while True:
            was_alone = False
            for kind, frame_id, payload in connection.receive():
                if kind == messages.BATCH:
                    batch = _decode(self._engine.info.name, payload)
                    was_alone = is_alone and self._compute_alone(connection, frame_id, batch)
                    if not was_alone:
                        self._submit(connection, frame_id, batch)
                elif kind == messages.CANARY:
                    self._submit(connection, frame_id, self._canary.batch)
                elif kind == messages.EXIT:
                    logger.critical("the batch manager gives this engine up: the process ends")
                    os._exit(1)
            is_alone = not connection.wait(0)
            if was_alone and is_alone:
                self._spin(connection)

    def _spin(self, connection: BlockingConnection) -> None:
        """Stay awake for a while: on an idle machine a thread that sleeps takes longer to wake than a small model needs
        for a text. Whatever comes ends it."""
        until = time.monotonic() + self._spin_seconds
        while time.monotonic() < until and not connection.wait(0):
            pass

    def _compute_alone(self, connection: BlockingConnection, frame_id: int, batch: Batch) -> bool:
        """Compute and answer a batch here, if the engine can and does nothing else; whether it was done."""
        began = time.monotonic()
        in_engine = _BatchInEngine(connection, frame_id, batch.num_tokens, batch.is_urgent, began, began)
        with self._lock:
            if self._held:
                return False
            self._held[_ALONE] = in_engine
        with self._sending:
            results = self._engine.compute_alone(batch)
            with self._lock:
                del self._held[_ALONE]
            if results is None:
                return False
            self._answer(in_engine, results, compute_seconds=time.monotonic() - began)
        return True

    def _submit(self, connection: BlockingConnection, frame_id: int, batch: Batch) -> None:
        now = time.monotonic()
        ticket = self._engine.submit(batch)
        with self._noted:
            is_canary = batch is self._canary.batch
            self._held[ticket] = _BatchInEngine(
                connection, frame_id, batch.num_tokens, batch.is_urgent, now, is_canary=is_canary
            )
            self._begin_next(now)
            self._noted.notify()

    def _begin_next(self, now: float) -> None:
        """Free streams take the batches that came first, urgent ones before others where the engine does."""
        num_free = self._limits.streams - sum(in_engine.began > 0 for in_engine in self._held.values())
        waiting = [in_engine for in_engine in self._held.values() if not in_engine.began]
        if self._limits.puts_urgent_first:
            waiting.sort(key=lambda in_engine: not in_engine.is_urgent)
        for in_engine in waiting[: max(0, num_free)]:
            in_engine.began = now

    def _count_passed(self, finished: _BatchInEngine) -> None:
        """Count what urgent batches took from the others, which are not stuck for that."""
        for in_engine in self._held.values():
            if finished.is_urgent and in_engine.began and not in_engine.is_urgent:
                in_engine.passed_tokens += finished.num_tokens

    def _collect_forever(self) -> None:
        while True:
            try:
                ticket, results = self._engine.collect()
            except EngineClosed:
                with self._sending:
                    return
            now = time.monotonic()
            with self._noted:  # a batch can be finished before `_submit` has noted it
                self._noted.wait_for(lambda: ticket in self._held)  # noqa: B023 - runs only here
                in_engine = self._held.pop(ticket)
                self._count_passed(in_engine)
                self._begin_next(now)
            began = in_engine.began or in_engine.submitted  # the latter if it has overtaken the batch ahead
            self._answer(in_engine, results, compute_seconds=max(now - began, 0.0))

    def _answer(self, in_engine: _BatchInEngine, results: Results | EngineError, *, compute_seconds: float) -> None:
        if not isinstance(results, EngineError):
            for rows in results.values():
                if not np.isfinite(rows.values).all():
                    results = EngineError(EngineErrorKind.NON_FINITE, "a row is not finite")
                    break
        if in_engine.is_canary:
            results = self._canary.judge(results) or {}
        try:
            with self._sending:
                if isinstance(results, EngineError):
                    _send_failed(in_engine, results)
                else:
                    _send_rows(in_engine, results, compute_seconds)
        except OSError:
            logger.info("dropped the rows of a batch: its batch manager has left")
        if isinstance(results, EngineError) and results.kind is EngineErrorKind.FATAL:
            os._exit(1)


def _decode(model: str, payload: memoryview) -> Batch:
    """Raises ProtocolError: what is no batch cuts the connection, as what is no frame does, and the engine goes on."""
    try:
        return messages.decode_batch(model, payload)
    except (ValueError, struct.error) as error:
        raise ProtocolError(f"the batch manager sent a malformed batch: {error}") from None


def _send_rows(in_engine: _BatchInEngine, results: Results, compute_seconds: float) -> None:
    try:
        in_engine.connection.send(messages.RESULT, in_engine.frame_id, messages.encode_result(results, compute_seconds))
    except PayloadTooLarge:
        _send_failed(in_engine, EngineError(EngineErrorKind.OUT_OF_MEMORY, "the rows are too large for a frame"))


def _send_failed(in_engine: _BatchInEngine, error: EngineError) -> None:
    logger.error("a batch of %d tokens failed: %s", in_engine.num_tokens, error)
    in_engine.connection.send(messages.FAILED, in_engine.frame_id, messages.encode_failed(error))


class StartReport:
    """Sends heartbeats from its own thread, and stages from the one that loads."""

    def __init__(self, supervisor: BlockingConnection) -> None:
        self._supervisor = supervisor
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def enter(self, stage: str) -> None:
        """Say what comes next. It is in the socket on return, so a death right after it loses nothing."""
        with self._sending:
            self._supervisor.send(control.STAGE, 0, control.encode({"stage": stage}))

    def stop(self) -> None:
        """Return when another sender can use the supervisor's socket."""
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stopped.wait(control.HEARTBEAT_SECONDS):
            with self._sending:
                self._supervisor.send(control.HEARTBEAT, 0, control.encode({"busy": None}))


def main() -> NoReturn:
    """Run an engine process: `<python> -P -m engine.worker <control descriptor> <supervisor's pid> [<engine>]`. The
    engine is what it will most likely load, and is imported before START comes."""
    control_fd, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    settle(parent_pid)
    for name in sys.argv[3:]:
        registry.import_early(name)
    threading.excepthook = _die  # without one of its threads a worker would keep its batches for ever
    supervisor = BlockingConnection(socket.socket(fileno=control_fd))
    process, start = _wait_for_start(supervisor)
    begin(process.title, process.log_level, json_output=process.json_output)
    starting = StartReport(supervisor)
    try:
        engine = registry.load(
            start.engine, name=start.model, reason=start.reason, options=start.options, on_stage=starting.enter
        )
        starting.enter("first batches")
        limits = warm_up(engine)
        starting.enter("canary")
        canary = Canary(engine, tokens_per_second=limits.tokens_per_second)
    except ModelError as error:
        starting.stop()
        supervisor.send(control.FAILED, 0, control.encode({"message": str(error)}))
        sys.exit(2)
    gc.collect()
    gc.freeze()  # the model stays; collecting it would stop all threads for tenths of a second
    host.release_freed()  # what compiling and testing took
    worker = Worker(
        engine, socket.socket(fileno=start.listener_fd), limits=limits, canary=canary, spin_seconds=start.spin_seconds
    )
    collector = worker.start()
    starting.stop()
    supervisor.send(control.READY, 0, control.encode({"info": dataclasses.asdict(engine.info)}))
    _beat_until_stopped(supervisor, worker)
    engine.close()
    collector.join()
    sys.exit(0)


def _die(args: threading.ExceptHookArgs) -> None:
    logger.critical("a thread ended", exc_info=args.exc_value)
    os._exit(1)


def _wait_for_start(supervisor: BlockingConnection) -> tuple[ProcessStart, EngineStart]:
    while True:
        for kind, _, payload in supervisor.receive():
            if kind == control.START:
                return control.decode_start(payload, EngineStart)


def _beat_until_stopped(supervisor: BlockingConnection, worker: Worker) -> None:
    """Answer the supervisor until it sends STOP. Without a supervisor the process exits."""
    try:
        while True:
            if not supervisor.wait(control.HEARTBEAT_SECONDS):
                supervisor.send(control.HEARTBEAT, 0, control.encode({"busy": worker.busy()}))
                continue
            for kind, _, _ in supervisor.receive():
                if kind == control.STOP:
                    return
                if kind == control.DUMP:
                    supervisor.send(control.DUMPED, 0, control.encode(worker.holds()))
    except (EOFError, OSError):
        os._exit(1)


if __name__ == "__main__":
    main()
