"""Tickets, slots, two threads and errors of the fused engine, around a device that watches how it is used."""

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.fused.engine import FusedEngine
from engine.fused.start import Phases
from engine.rows.query_table import QueryTable
from engine.types import Batch, EngineClosed, EngineError, EngineErrorKind, OutputKind, Results
from tests.engine.fused.runner.recording import DEPTH, RecordingDevice, engine_around, expected_rows, of_lengths
from tests.engine.tiny_models import batch
from wire.parts import QUERY_TOKEN

NUM_BATCHES = 200


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()


@pytest.fixture
def engine(device: RecordingDevice) -> FusedEngine:
    return engine_around(device)


def pooled(engine: FusedEngine, ticket: int) -> list[list[float]]:
    collected, results = engine.collect()
    assert collected == ticket
    assert isinstance(results, dict), results
    values: list[list[float]] = results[OutputKind.POOLED].values.tolist()
    return values


def failed(engine: FusedEngine, ticket: int) -> EngineError:
    collected, error = engine.collect()
    assert collected == ticket
    assert isinstance(error, EngineError)
    return error


def test_two_threads_and_many_batches(engine: FusedEngine) -> None:
    """The device watches that no block is written before its batch was collected."""
    seqlens = [tuple(1 + (number * step) % 9 for step in range(1, 2 + number % 6)) for number in range(NUM_BATCHES)]
    submitted: list[int] = []

    def submit() -> None:
        for number in range(NUM_BATCHES):
            submitted.append(engine.submit(of_lengths(number, seqlens[number])))
        engine.close()

    thread = threading.Thread(target=submit)
    thread.start()
    found = [pooled(engine, ticket) for ticket in range(1, NUM_BATCHES + 1)]
    thread.join()
    assert found == [expected_rows(number, seqlens[number]) for number in range(NUM_BATCHES)]
    assert submitted == list(range(1, NUM_BATCHES + 1))
    with pytest.raises(EngineClosed):
        engine.collect()


def test_submit_blocks_while_depth_batches_are_inside(engine: FusedEngine) -> None:
    for first in range(DEPTH):
        engine.submit(of_lengths(first))
    third = threading.Thread(target=engine.submit, args=(of_lengths(7),))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    pooled(engine, 1)
    third.join()
    assert pooled(engine, 2) == expected_rows(1)
    assert pooled(engine, 3) == expected_rows(7)


def test_a_batch_is_staged_while_another_computes(engine: FusedEngine, device: RecordingDevice) -> None:
    device.gate = threading.Semaphore(0)
    engine.submit(of_lengths(1))
    collected: list[list[list[float]]] = []
    collector = threading.Thread(target=lambda: collected.append(pooled(engine, 1)))
    collector.start()
    engine.submit(of_lengths(2))  # would block for ever if only one fitted
    assert len(device.order) == DEPTH
    third = threading.Thread(target=engine.submit, args=(of_lengths(3),))
    third.start()
    third.join(0.05)
    assert third.is_alive()  # a slot is not free while it is being waited for
    device.gate.release(3)
    for thread in (collector, third):
        thread.join()
    assert collected == [expected_rows(1)]
    assert [pooled(engine, ticket) for ticket in (2, 3)] == [expected_rows(2), expected_rows(3)]


def test_collect_waits_for_a_batch_or_the_end(engine: FusedEngine) -> None:
    raised = threading.Event()

    def collect() -> None:
        with pytest.raises(EngineClosed):
            engine.collect()
        raised.set()

    collector = threading.Thread(target=collect)
    collector.start()
    collector.join(0.05)
    assert not raised.is_set()
    engine.close()
    collector.join()
    assert raised.is_set()


def test_closing_finishes_what_is_inside_and_what_comes_late(engine: FusedEngine) -> None:
    engine.submit(of_lengths(1))
    engine.close()
    assert pooled(engine, 1) == expected_rows(1)
    for _ in range(2):
        with pytest.raises(EngineClosed):
            engine.collect()
    late = engine.submit(of_lengths(2))
    assert pooled(engine, late) == expected_rows(2)


@pytest.mark.parametrize("kind", [OutputKind.TOKENS, OutputKind.MULTI_VECTOR])
def test_token_rows_come_with_their_offsets(kind: OutputKind, engine: FusedEngine) -> None:
    made = of_lengths(5)
    both = OutputKind.POOLED | kind
    engine.submit(Batch("m", both, made.token_ids, made.cu_seqlens))
    _, results = engine.collect()
    assert isinstance(results, dict)
    assert results[OutputKind.POOLED].values.tolist() == expected_rows(5)
    assert results[OutputKind.POOLED].offsets is None
    rows = results[kind]
    assert rows.values[:, 0].tolist() == made.token_ids.tolist()
    assert rows.offsets is not None
    assert rows.offsets.tolist() == made.cu_seqlens.tolist()


# --- sparse rows


def sparse(results: Results | EngineError) -> list[list[tuple[float, float]]]:
    """Ids and weights of each sequence."""
    assert isinstance(results, dict), results
    rows = results[OutputKind.SPARSE]
    assert rows.offsets is not None
    assert len(rows.values) == rows.offsets[-1]
    parts = [rows.values[start:end].tolist() for start, end in itertools.pairwise(rows.offsets.tolist())]
    return [[(int(token), round(weight, 6)) for token, weight in part] for part in parts]


def marked(sequences: list[list[int]], queries: list[int]) -> Batch:
    """Some of them are queries."""
    marks = [QUERY_TOKEN * (number in queries) for number, ids in enumerate(sequences) for _ in ids]
    return dataclasses.replace(batch(sequences), outputs=OutputKind.SPARSE, marks=np.array(marks, np.uint8))


def test_of_weights_of_tokens_each_id_keeps_the_largest_and_some_have_none(device: RecordingDevice) -> None:
    engine = engine_around(device, unused_ids=(2, 3))
    made = dataclasses.replace(batch([[2, 9, 5, 9, 3], [3], [7, 2]]), outputs=OutputKind.SPARSE | OutputKind.POOLED)
    engine.submit(made)
    _, results = engine.collect()
    assert sparse(results) == [[(5, 0.05), (9, 0.09)], [], [(7, 0.07)]]
    assert isinstance(results, dict)
    assert results[OutputKind.POOLED].values.tolist() == [[2, 5], [3, 1], [7, 2]]


SEQUENCES = [[7, 7], [8, 9], [4], [5, 6]]
LOOKED_UP = [[(7, 70.0)], [(8, 80.0), (9, 90.0)], [(4, 40.0)], [(5, 50.0), (6, 60.0)]]
COMPUTED = [[(7, 0.07)], [(8, 0.08), (9, 0.09)], [(4, 0.04)], [(5, 0.05), (6, 0.06)]]


def test_queries_of_a_table_are_looked_up_and_documents_alone_computed(device: RecordingDevice) -> None:
    table = QueryTable(np.arange(0, 10_000, 10, dtype=np.float32), surrounding_ids=())
    engine = engine_around(device, queries=table)
    # twice as many as there are slots, and batches of queries alone among them keep their place
    for _, queries in itertools.product(range(2), [[0, 2], [0, 1, 2, 3], [], [3]]):
        computed = len(device.order)
        tickets = [engine.submit(marked(SEQUENCES, queries)) for _ in range(2)]
        assert len(device.order) - computed == (0 if len(queries) == 4 else 2)
        for ticket in tickets:
            collected, results = engine.collect()
            assert collected == ticket
            assert sparse(results) == [(LOOKED_UP if number in queries else COMPUTED)[number] for number in range(4)]


def test_queries_alone_are_answered_in_their_turn(device: RecordingDevice) -> None:
    """Behind a batch that the device computes, and before one that comes after them."""
    engine = engine_around(device, queries=QueryTable(np.arange(0, 10_000, 10, dtype=np.float32), surrounding_ids=()))
    first, second = engine.submit(marked(SEQUENCES, [])), engine.submit(marked(SEQUENCES, [0, 1, 2, 3]))
    answers = [engine.collect()]
    third = engine.submit(marked(SEQUENCES, [1]))
    answers += [engine.collect() for _ in range(2)]
    assert [ticket for ticket, _ in answers] == [first, second, third]
    assert [sparse(results)[0] for _, results in answers] == [COMPUTED[0], LOOKED_UP[0], COMPUTED[0]]


# --- urgent batches


@pytest.mark.holds("A query passes bulk")
def test_an_urgent_batch_goes_before_one_that_gives_way(engine: FusedEngine, device: RecordingDevice) -> None:
    computing = engine.submit(of_lengths(1, gives_way=True))
    staged = engine.submit(of_lengths(2, gives_way=True))
    assert len(device.order) == 1
    urgent = engine.submit(of_lengths(3, is_urgent=True))
    assert len(device.order) == 2  # behind the one that computes, without waiting for its end
    for ticket, first in ((computing, 1), (urgent, 3), (staged, 2)):
        assert pooled(engine, ticket) == expected_rows(first)


def test_a_batch_that_gives_way_is_started_when_the_device_has_nothing_left(
    engine: FusedEngine, device: RecordingDevice
) -> None:
    first, second = (engine.submit(of_lengths(number, gives_way=True)) for number in (1, 2))
    assert pooled(engine, first) == expected_rows(1)
    assert len(device.order) == 2  # before anybody asks for its rows
    assert pooled(engine, second) == expected_rows(2)


def test_urgent_batches_have_slots_of_their_own(engine: FusedEngine) -> None:
    others = [engine.submit(of_lengths(number, gives_way=True)) for number in range(DEPTH)]
    urgent = [engine.submit(of_lengths(10 + number, is_urgent=True)) for number in range(DEPTH)]
    assert [engine.collect()[0] for _ in range(2 * DEPTH)] == [others[0], *urgent, *others[1:]]


def test_a_batch_that_fails_when_its_turn_has_come_holds_up_nobody(
    engine: FusedEngine, device: RecordingDevice
) -> None:
    first = engine.submit(of_lengths(1, gives_way=True))
    second = engine.submit(of_lengths(2, gives_way=True))
    device.failure_at_start = lambda _: ValueError("harmless")
    assert pooled(engine, first) == expected_rows(1)
    device.failure_at_start = lambda _: None
    third = engine.submit(of_lengths(3, gives_way=True))
    assert failed(engine, second).kind is EngineErrorKind.FAILED
    assert pooled(engine, third) == expected_rows(3)


# --- errors


def test_a_batch_that_finds_no_memory_is_computed_with_what_torch_gives_back(
    engine: FusedEngine, device: RecordingDevice
) -> None:
    failures: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory")]
    device.failure_at_start = lambda _: failures.pop() if failures else None
    engine.submit(of_lengths(1))
    assert pooled(engine, 1) == expected_rows(1)
    assert device.num_settled == 1


@pytest.mark.holds("Engines on a GPU")
@pytest.mark.parametrize(
    ("error", "kind", "num_settled"),
    [
        (ValueError("some\nlong story"), EngineErrorKind.FAILED, 1),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), EngineErrorKind.OUT_OF_MEMORY, 2),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), EngineErrorKind.FATAL, 0),
    ],
)
def test_an_error_at_the_start_is_that_batchs_answer(
    error: Exception, kind: EngineErrorKind, num_settled: int, engine: FusedEngine, device: RecordingDevice
) -> None:
    """A device that failed is brought into order before its slot is used again, unless it is lost."""
    engine.submit(of_lengths(1))
    device.failure_at_start = lambda _: error
    engine.submit(of_lengths(2))
    device.failure_at_start = lambda _: None
    assert pooled(engine, 1) == expected_rows(1)
    found = failed(engine, 2)
    assert found.kind is kind
    assert type(error).__name__ in str(found)
    assert "\n" not in str(found)
    assert device.num_settled == num_settled
    for ticket, first in ((3, 4), (4, 5)):
        engine.submit(of_lengths(first))
        assert pooled(engine, ticket) == expected_rows(first)


def test_an_error_at_the_end_is_that_batchs_answer(engine: FusedEngine, device: RecordingDevice) -> None:
    engine.submit(of_lengths(1))
    device.failure_at_finish = RuntimeError("CUDA error: unspecified launch failure")
    assert failed(engine, 1).kind is EngineErrorKind.FATAL
    device.failure_at_finish = None
    engine.submit(of_lengths(2))
    assert pooled(engine, 2) == expected_rows(2)


@pytest.mark.holds("Engines on a GPU")
def test_a_device_that_can_not_be_brought_into_order_is_lost(
    engine: FusedEngine, device: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device, "settle", settle)
    device.failure_at_start = lambda _: ValueError("harmless")
    engine.submit(of_lengths(1))
    assert failed(engine, 1).kind is EngineErrorKind.FATAL


def test_what_a_failed_batch_held_is_let_go_before_the_device_is_brought_into_order(
    engine: FusedEngine, device: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or memory that ran out would still be taken when unused memory is given back."""
    held: list[weakref.ref[torch.Tensor]] = []
    was_held: list[bool] = []

    def start(*_: object) -> None:
        rows = torch.empty(3)
        held.append(weakref.ref(rows))
        raise torch.OutOfMemoryError(f"out of memory for {len(rows)} more")

    monkeypatch.setattr(device, "start", start)
    monkeypatch.setattr(device, "settle", lambda: was_held.append(held[-1]() is not None))
    engine.submit(of_lengths(1))
    assert failed(engine, 1).kind is EngineErrorKind.OUT_OF_MEMORY
    assert was_held == [False, False]


def test_a_batch_that_fails_from_both_threads_holds_up_nobody(engine: FusedEngine, device: RecordingDevice) -> None:
    device.failure_at_start = lambda _: ValueError("always")
    threading.Thread(target=lambda: [engine.submit(of_lengths(1)) for _ in range(20)]).start()
    assert [failed(engine, ticket).kind for ticket in range(1, 21)] == [EngineErrorKind.FAILED] * 20


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: of_lengths(999),  # the second id is 1000
        lambda: batch([[-1]]),
        lambda: Batch("m", OutputKind.POOLED, np.array([1, 2], np.int32), np.array([0, 0, 2], np.int32)),
        lambda: Batch("m", OutputKind.POOLED, np.zeros(0, np.int32), np.zeros(1, np.int32)),
        lambda: of_lengths(1, [33]),
        lambda: of_lengths(1, [20, 20, 20, 20]),
        lambda: of_lengths(1, [1] * 9),
        lambda: Batch("m", OutputKind.TOKEN_LOGITS, np.ones(1, np.int32), np.array([0, 1], np.int32)),
    ],
    ids=["id", "negative id", "empty sequence", "nothing", "long", "many tokens", "many sequences", "other output"],
)
def test_a_batch_that_is_not_what_it_should_be_never_reaches_the_device(
    wrong: Callable[[], Batch], engine: FusedEngine, device: RecordingDevice
) -> None:
    engine.submit(wrong())
    assert failed(engine, 1).kind is EngineErrorKind.FAILED
    assert device.order == []


def test_phases_add_up_and_are_named_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(10.0)
    monkeypatch.setattr("engine.fused.start.time.perf_counter", lambda: next(clock))
    phases = Phases()
    for name in ("weights", "check", "weights"):
        with phases(name):
            pass
    assert str(phases) == "loaded in 7.0 s: weights 2.0, check 1.0"
