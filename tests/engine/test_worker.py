"""The engine process, driven as a supervisor and a batch manager would: over its sockets and nothing else.

The worker with an engine whose second batch overtakes the first; both of its threads' work is done here in turn.
"""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from engine import fake, messages
from engine.fake import FakeEngine
from engine.messages import EngineStart, LoadOptions
from engine.selftest.warmup import Canary
from engine.types import Batch, EngineClosed, EngineError, EngineErrorKind, OutputKind, Results, compute
from engine.worker import Worker
from tests.engine.engines import fake_options
from tests.server_e2e.running import PATIENCE
from wire import control
from wire.blocking import BlockingConnection
from wire.control import ProcessStart
from wire.parts import Part

ROOT = Path(__file__).resolve().parents[2]


class EngineProcess:
    """A running engine worker and our two ends of its sockets."""

    def __init__(
        self, folder: Path, options: LoadOptions, *, engine: str = "fake", module: str = "engine.worker"
    ) -> None:
        self.path = str(folder / "engine.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.connections: list[BlockingConnection] = []
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(os.getpid())],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                pass_fds=(theirs.fileno(), self.listener.fileno()),
            )
        ours.settimeout(20)
        self.supervisor = BlockingConnection(ours)
        process = ProcessStart(title="engine 0", index=0, log_level="ERROR")
        start = EngineStart(
            listener_fd=self.listener.fileno(), engine=engine, model="m", reason="asked", options=options
        )
        self.supervisor.send(control.START, 0, control.encode_start(process, start))

    def wait_for(self, wanted: int) -> dict[str, Any]:
        """The next control frame of this kind."""
        while True:
            for kind, _, payload in self.supervisor.receive():
                if kind == wanted:
                    fields: dict[str, Any] = json.loads(bytes(payload))
                    return fields

    def connect(self) -> BlockingConnection:
        """As a batch manager, past READY."""
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.settimeout(20)
        channel.connect(self.path)
        connection = BlockingConnection(channel)
        self.connections.append(connection)
        kind, _, payload = receive(connection)
        assert kind == messages.READY
        info, limits = messages.decode_ready(payload)
        assert info.dimensions == 16
        assert limits.tokens_per_second > 0
        return connection

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for connection in (self.supervisor, *self.connections):
            connection.close()
        self.listener.close()


def receive(connection: BlockingConnection) -> tuple[int, int, memoryview]:
    while True:
        for frame in connection.receive():
            return frame


def send_batch(connection: BlockingConnection, frame_id: int, *sequences: list[int]) -> None:
    ids = [np.array(sequence, np.int32).tobytes() for sequence in sequences]
    parts = messages.encode_batch(OutputKind.POOLED, [len(sequence) for sequence in sequences], ids)
    connection.send(messages.BATCH, frame_id, parts)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[EngineProcess] = []

    def begin(**options: Any) -> EngineProcess:
        started.append(EngineProcess(tmp_path, fake_options(**options)))
        return started[-1]

    yield begin
    for engine in started:
        engine.close()


def test_batches_in_rows_out_and_a_stop(start: Any) -> None:
    engine = start()
    assert engine.wait_for(control.READY)["info"]["engine"] == "fake"
    manager = engine.connect()

    send_batch(manager, 7, [1, 2, 3], [4])
    kind, frame_id, payload = receive(manager)

    assert (kind, frame_id) == (messages.RESULT, 7)
    results, seconds = messages.decode_result(payload)
    fixed = fake.table(16)
    expected = [fake.row(fixed, np.array(sequence, np.int32).tobytes()) for sequence in ([1, 2, 3], [4])]
    assert np.array_equal(results[OutputKind.POOLED].values, np.stack(expected))
    assert seconds >= 0
    manager.close()
    engine.supervisor.send(control.STOP, 0, control.encode({}))
    assert engine.process.wait(PATIENCE) == 0


WITH_SPARE_MARKS = messages.encode_batch(OutputKind.POOLED, [1], [bytes(4)], {Part.MARKS: [b"12"]})


@pytest.mark.parametrize("payload", [b"", b"?" * 12, b"".join(WITH_SPARE_MARKS)])
def test_a_malformed_batch_costs_the_connection_and_not_the_process(start: Any, payload: bytes) -> None:
    engine = start()
    engine.wait_for(control.READY)
    manager = engine.connect()
    manager.send(messages.BATCH, 1, [payload])
    with pytest.raises(EOFError):
        receive(manager)
    again = engine.connect()
    send_batch(again, 2, [1, 2])
    assert receive(again)[:2] == (messages.RESULT, 2)


def test_the_next_batch_manager_is_served_when_one_dies(start: Any) -> None:
    engine = start(fake_cost_ms=50)
    engine.wait_for(control.READY)
    first = engine.connect()
    send_batch(first, 1, [1])
    first.close()  # with a batch in the engine

    second = engine.connect()
    send_batch(second, 2, [2])

    kind, frame_id, _ = receive(second)
    assert (kind, frame_id) == (messages.RESULT, 2)  # and never the dead one's rows
    second.close()


@pytest.mark.parametrize(
    ("fault", "kind"), [("fail@token:9", EngineErrorKind.FAILED), ("nan@token:9", EngineErrorKind.NON_FINITE)]
)
def test_a_failed_batch_is_answered_and_the_next_one_computed(start: Any, fault: str, kind: EngineErrorKind) -> None:
    # the warm-up's ids count up from 0, so the fault has to wait until it is over
    engine = start(fake_fault=[fault], vocab_size=5)
    manager = engine.connect()

    send_batch(manager, 1, [9])
    send_batch(manager, 2, [1])

    answered, frame_id, payload = receive(manager)
    assert (answered, frame_id) == (messages.FAILED, 1)
    assert messages.decode_failed(payload).kind is kind
    assert receive(manager)[:2] == (messages.RESULT, 2)
    manager.close()


@pytest.mark.parametrize(
    ("fault", "kind"), [("fail@after:40", EngineErrorKind.FAILED), ("nan@after:40", EngineErrorKind.NON_FINITE)]
)
def test_a_canary_passes_until_the_engine_is_sick(start: Any, fault: str, kind: EngineErrorKind) -> None:
    engine = start(fake_fault=[fault])
    manager = engine.connect()

    manager.send(messages.CANARY, 1)
    answered, frame_id, payload = receive(manager)
    assert (answered, frame_id) == (messages.RESULT, 1)
    assert messages.decode_result(payload)[0] == {}

    for _ in range(40):
        send_batch(manager, 2, [1])
        receive(manager)
    manager.send(messages.CANARY, 3)
    answered, frame_id, payload = receive(manager)
    assert (answered, frame_id) == (messages.FAILED, 3)
    assert messages.decode_failed(payload).kind is kind


def test_rows_that_turned_wrong_fail_the_canary_and_the_process_ends_when_it_is_told(start: Any) -> None:
    engine = start(fake_fault=["wrong@after:40"])
    manager = engine.connect()
    for _ in range(40):
        send_batch(manager, 1, [1])
        receive(manager)

    manager.send(messages.CANARY, 2)
    answered, _, payload = receive(manager)
    assert answered == messages.FAILED
    assert "POOLED rows differ" in str(messages.decode_failed(payload))

    manager.send(messages.EXIT, 0)
    assert engine.process.wait(PATIENCE) == 1


def test_a_heartbeat_names_the_batch_that_runs(start: Any) -> None:
    engine = start(fake_fault=["hang@token:9"], vocab_size=5)
    manager = engine.connect()
    assert engine.wait_for(control.HEARTBEAT)["busy"] is None

    send_batch(manager, 41, [9, 1])

    while (busy := engine.wait_for(control.HEARTBEAT)["busy"]) is None:
        pass
    assert (busy["batch"], busy["tokens"], busy["streams"]) == (41, 2, 1)
    assert busy["since"] > 0
    manager.close()


@pytest.mark.holds("Ready means that finite rows were computed", "Readiness")
def test_an_engine_whose_rows_are_not_finite_never_becomes_ready(start: Any) -> None:
    engine = start(fake_fault=["nan@batch:1"])

    assert "not finite" in engine.wait_for(control.FAILED)["message"]
    assert engine.process.wait(PATIENCE) == 2


def test_it_does_not_outlive_its_supervisor(start: Any) -> None:
    engine = start()
    engine.wait_for(control.READY)

    engine.supervisor.close()

    assert engine.process.wait(PATIENCE) == 1


def test_signals_of_the_terminal_are_the_supervisors_business(start: Any) -> None:
    engine = start()
    engine.wait_for(control.READY)
    for number in (signal.SIGINT, signal.SIGTERM):
        engine.process.send_signal(number)

    engine.wait_for(control.HEARTBEAT)
    assert engine.process.poll() is None


def test_connections_that_died_while_the_model_was_loading_are_passed_over(start: Any) -> None:
    engine = start()
    for _ in range(5):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
            gone.connect(engine.path)
    engine.wait_for(control.READY)

    manager = engine.connect()
    send_batch(manager, 1, [1])

    assert receive(manager)[:2] == (messages.RESULT, 1)


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


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Of a batch manager and the worker."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def fake_engine() -> FakeEngine:
    return fake.load(name="m", reason="asked", options=fake_options())


def some_batch(length: int, *, is_urgent: bool = False) -> Batch:
    ids = np.arange(length, dtype=np.int32).tobytes()
    parts = messages.encode_batch(OutputKind.POOLED, [length], [ids], is_urgent=is_urgent)
    return messages.decode_batch("m", memoryview(b"".join(parts)))


def busy_with(worker: Worker) -> tuple[int, int]:
    """The number of a batch, and its tokens."""
    busy = worker.busy()
    assert busy is not None
    return busy["batch"], busy["tokens"]


def test_a_batch_that_overtakes_another_has_its_time_too(pair: Pair) -> None:
    manager, connection = map(BlockingConnection, pair)
    engine = Overtaking(fake_engine())
    worker = Worker(engine, pair[1], limits=engine.limits, canary=Canary(engine))
    for frame_id in (1, 2):
        worker._submit(connection, frame_id, some_batch(3))
    assert busy_with(worker)[0] == 1

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


def test_the_time_of_an_urgent_batch_begins_before_that_of_a_batch_that_it_passes(pair: Pair) -> None:
    manager, connection = map(BlockingConnection, pair)
    engine = InThisOrder(fake_engine(), [1, 2])
    worker = Worker(engine, pair[1], limits=engine.limits, canary=Canary(engine))  # ticket 1
    for frame_id, is_urgent in ((11, False), (12, False), (13, True)):
        worker._submit(connection, frame_id, some_batch(3, is_urgent=is_urgent))

    worker._collect_forever()

    assert receive(manager)[1] == 11
    assert busy_with(worker)[0] == 13


def test_urgent_batches_that_pass_a_batch_do_not_make_it_look_stuck(pair: Pair) -> None:
    connection = BlockingConnection(pair[1])
    engine = InThisOrder(fake_engine(), [1, 3])
    worker = Worker(engine, pair[1], limits=engine.limits, canary=Canary(engine))  # ticket 1
    for frame_id, length, is_urgent in ((11, 20, False), (12, 5, True)):
        worker._submit(connection, frame_id, some_batch(length, is_urgent=is_urgent))

    worker._collect_forever()

    assert busy_with(worker) == (11, 25)


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


def test_a_batch_is_computed_at_once_unless_it_came_while_another_was(pair: Pair) -> None:
    """So clients that take turns keep all streams busy."""
    ours, theirs = pair
    manager = BlockingConnection(ours)
    waiting = [12]

    def send(num_tokens: int) -> None:
        send_batch(manager, num_tokens, list(range(num_tokens)))

    def meanwhile() -> None:
        while waiting:
            send(waiting.pop())

    inner = fake_engine()
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


def test_the_process_does_not_end_before_a_batch_that_is_computed_alone_is_answered(pair: Pair) -> None:
    manager, connection = map(BlockingConnection, pair)
    had_ended: list[bool] = []

    def meanwhile() -> None:  # the engine is closed; the main thread joins the one that collects, and exits
        collector.start()
        collector.join(0.1)
        had_ended.append(not collector.is_alive())

    inner = fake_engine()
    engine = Alone(inner, meanwhile)
    worker = Worker(engine, pair[1], limits=engine.limits, canary=Canary(inner))
    collector = threading.Thread(target=worker._collect_forever)

    assert worker._compute_alone(connection, 7, some_batch(3))

    collector.join(PATIENCE)
    assert (had_ended, collector.is_alive()) == ([False], False)
    assert receive(manager)[:2] == (messages.RESULT, 7)


def test_after_a_lone_text_it_stays_awake_until_something_comes_or_the_time_is_over(pair: Pair) -> None:
    inner = fake_engine()

    def worker(spin_seconds: float) -> Worker:
        return Worker(inner, pair[1], limits=inner.limits, canary=Canary(inner), spin_seconds=spin_seconds)

    looks = iter((False, False, True))
    worker(PATIENCE)._spin(mock.Mock(wait=lambda _: next(looks)))
    assert not list(looks)
    waits_for_ever = mock.Mock(wait=mock.Mock(return_value=False))
    worker(0.001)._spin(waits_for_ever)
    assert waits_for_ever.wait.called
    worker(0)._spin(mock.Mock(wait=None))  # not asked at all


def test_it_does_not_stay_awake_beside_what_came_together_with_a_lone_text(pair: Pair) -> None:
    inner = fake_engine()
    worker = Worker(inner, pair[1], limits=inner.limits, canary=Canary(inner), spin_seconds=PATIENCE)
    frame = (messages.BATCH, 1, memoryview(b"".join(messages.encode_batch(OutputKind.POOLED, [1], [bytes(4)], {}))))
    connection = mock.Mock(receive=mock.Mock(side_effect=[[frame, frame], EOFError]), wait=lambda _: False)
    with (
        mock.patch.object(worker, "_compute_alone", side_effect=[True, False]),
        mock.patch.object(worker, "_submit") as submit,
        mock.patch.object(worker, "_spin") as spin,
        pytest.raises(EOFError),
    ):
        worker._serve(connection)
    assert submit.called
    assert not spin.called
