"""The worker with an engine whose second batch overtakes the first; both of its threads' work is done here in turn."""

import dataclasses
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from engine import fake, messages
from engine.fake import FakeEngine
from engine.selftest.warmup import Canary
from engine.types import Batch, EngineClosed, EngineError, OutputKind, Results, compute
from engine.worker import Worker
from tests.engine.engines import fake_options
from tests.engine.test_worker import receive
from tests.server_e2e.running import PATIENCE
from wire.connection import BlockingConnection


class Overtaking:
    """Gives the newest batch first."""

    def __init__(self, inner: FakeEngine) -> None:
        self.info = inner.info
        self.limits = dataclasses.replace(inner.limits, overlaps=True)
        self._inner = inner
        self._finished: list[tuple[int, Results | EngineError]] = []

    def submit(self, batch: Batch) -> int:
        ticket = self._inner.submit(batch)
        self._finished.append(self._inner.collect())
        return ticket

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        return None

    def collect(self) -> tuple[int, Results | EngineError]:
        if not self._finished:
            raise EngineClosed
        return self._finished.pop()

    def close(self) -> None:
        self._inner.close()


def test_a_batch_that_overtakes_another_has_its_time_too() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        manager, connection = BlockingConnection(ours), BlockingConnection(theirs)
        engine = Overtaking(fake.load(name="m", reason="asked", options=fake_options()))
        worker = Worker(engine, theirs, limits=engine.limits, canary=Canary(engine))
        ids = np.array([1, 2, 3], np.int32).tobytes()
        payload = memoryview(b"".join(messages.encode_batch(OutputKind.POOLED, [3], [ids])))
        for frame_id in (1, 2):
            worker._submit(connection, frame_id, messages.decode_batch("m", payload))
        busy = worker.busy()
        assert busy is not None
        assert busy["batch"] == 1

        worker._collect_forever()

        for wanted in (2, 1):
            kind, frame_id, rows = receive(manager)
            assert (kind, frame_id) == (messages.RESULT, wanted)
            assert messages.decode_result(rows)[1] > 0
        assert worker.busy() is None


class InThisOrder(Overtaking):
    """Gives batches in the order of `tickets`, and has then come to its end."""

    def __init__(self, inner: FakeEngine, tickets: list[int]) -> None:
        super().__init__(inner)
        self.limits = dataclasses.replace(inner.limits, puts_urgent_first=True)
        self._tickets = tickets

    def collect(self) -> tuple[int, Results | EngineError]:
        if not self._tickets:
            raise EngineClosed
        ticket = self._tickets.pop(0)
        return next(found for found in self._finished if found[0] == ticket)


def test_the_time_of_an_urgent_batch_begins_before_that_of_a_batch_that_it_passes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        manager, connection = BlockingConnection(ours), BlockingConnection(theirs)
        engine = InThisOrder(fake.load(name="m", reason="asked", options=fake_options()), [1, 2])
        worker = Worker(engine, theirs, limits=engine.limits, canary=Canary(engine))  # ticket 1
        ids = np.array([1, 2, 3], np.int32).tobytes()
        for frame_id, is_urgent in ((11, False), (12, False), (13, True)):
            parts = messages.encode_batch(OutputKind.POOLED, [3], [ids], is_urgent=is_urgent)
            worker._submit(connection, frame_id, messages.decode_batch("m", memoryview(b"".join(parts))))

        worker._collect_forever()

        assert receive(manager)[1] == 11
        busy = worker.busy()
        assert busy is not None
        assert busy["batch"] == 13


def test_urgent_batches_that_pass_a_batch_do_not_make_it_look_stuck() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = BlockingConnection(theirs)
        engine = InThisOrder(fake.load(name="m", reason="asked", options=fake_options()), [1, 3])
        worker = Worker(engine, theirs, limits=engine.limits, canary=Canary(engine))  # ticket 1
        for frame_id, length, is_urgent in ((11, 20, False), (12, 5, True)):
            ids = np.arange(length, dtype=np.int32).tobytes()
            parts = messages.encode_batch(OutputKind.POOLED, [length], [ids], is_urgent=is_urgent)
            worker._submit(connection, frame_id, messages.decode_batch("m", memoryview(b"".join(parts))))

        worker._collect_forever()

        busy = worker.busy()
        assert busy is not None
        assert (busy["batch"], busy["tokens"]) == (11, 25)


class Alone(Overtaking):
    """Computes at once what comes alone, and calls `meanwhile` before."""

    def __init__(self, inner: FakeEngine, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner)
        self.submitted: list[int] = []  # tokens of batches
        self.was_submitted = threading.Event()
        self._meanwhile = meanwhile

    def submit(self, batch: Batch) -> int:
        self.submitted.append(batch.num_tokens)
        self.was_submitted.set()
        return super().submit(batch)

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        self._meanwhile()
        return compute(self._inner, batch)


def test_a_batch_is_computed_at_once_unless_it_came_while_another_was() -> None:
    """So clients that take turns keep all streams busy."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        manager = BlockingConnection(ours)
        waiting = [12]

        def send(num_tokens: int) -> None:
            ids = np.arange(num_tokens, dtype=np.int32).tobytes()
            manager.send(messages.BATCH, num_tokens, messages.encode_batch(OutputKind.POOLED, [num_tokens], [ids]))

        def meanwhile() -> None:
            while waiting:
                send(waiting.pop())

        inner = fake.load(name="m", reason="asked", options=fake_options())
        engine = Alone(inner, meanwhile)
        worker = Worker(engine, theirs, limits=engine.limits, canary=Canary(inner))
        send(11)
        with ThreadPoolExecutor(1) as pool:
            serving = pool.submit(worker._serve, BlockingConnection(theirs))
            while (frame := receive(manager))[0] != messages.RESULT:
                pass
            assert frame[1] == 11
            assert engine.was_submitted.wait(PATIENCE)
            assert engine.submitted == [12]
            ours.close()
            with pytest.raises(EOFError):
                serving.result(20)


def test_the_process_does_not_end_before_a_batch_that_is_computed_alone_is_answered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        manager, connection = BlockingConnection(ours), BlockingConnection(theirs)
        had_ended: list[bool] = []

        def meanwhile() -> None:  # the engine is closed; the main thread joins the one that collects, and exits
            collector.start()
            collector.join(0.1)
            had_ended.append(not collector.is_alive())

        inner = fake.load(name="m", reason="asked", options=fake_options())
        engine = Alone(inner, meanwhile)
        worker = Worker(engine, theirs, limits=engine.limits, canary=Canary(inner))
        collector = threading.Thread(target=worker._collect_forever)
        ids = np.array([1, 2, 3], np.int32).tobytes()
        payload = memoryview(b"".join(messages.encode_batch(OutputKind.POOLED, [3], [ids])))

        assert worker._compute_alone(connection, 7, messages.decode_batch("m", payload))

        collector.join(PATIENCE)
        assert (had_ended, collector.is_alive()) == ([False], False)
        assert receive(manager)[:2] == (messages.RESULT, 7)
