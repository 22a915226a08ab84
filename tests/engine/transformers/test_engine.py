"""The transformers engine: its rows against sentence-transformers', its thread, what it refuses to load and why."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.transformers.forward import Forward
from engine.types import Batch, EngineClosed, EngineError, EngineErrorKind, OutputKind
from tests.engine.folder_files import change
from tests.engine.tiny_models import arbitrary, batch, save
from tests.engine.transformers.loaded import load, made, raw_rows
from tests.server_e2e.running import PATIENCE


def ids_as_rows(some: Batch) -> torch.Tensor:
    return torch.tensor(some.token_ids).float()[:, None].repeat(1, 2)


def failing(error: Exception) -> Forward:
    def forward(some: Batch) -> torch.Tensor:
        if some.token_ids[0] == 9:
            raise error
        return ids_as_rows(some)

    return forward


def test_tickets_come_back_in_order_and_closing_finishes_what_was_submitted() -> None:
    loaded = made(ids_as_rows)
    tickets = [loaded.submit(batch([[3, 4], [5]])), loaded.submit(batch([[6]]))]
    loaded.close()
    collected = [loaded.collect(), loaded.collect()]
    assert [ticket for ticket, _ in collected] == tickets
    values = [results[OutputKind.POOLED].values.tolist() for _, results in collected if isinstance(results, dict)]
    assert values == [[[3, 3], [5, 5]], [[6, 6]]]
    for _ in range(2):
        with pytest.raises(EngineClosed):
            loaded.collect()


def test_submit_blocks_while_depth_batches_are_inside() -> None:
    loaded = made(ids_as_rows)
    for _ in range(loaded.limits.depth):
        loaded.submit(batch([[1]]))
    third = threading.Thread(target=loaded.submit, args=(batch([[2]]),))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    loaded.collect()
    third.join()
    for _ in range(2):
        loaded.collect()
    loaded.close()


def test_a_batch_waits_inside_while_another_computes() -> None:
    gate = threading.Event()

    def forward(some: Batch) -> torch.Tensor:
        assert gate.wait(PATIENCE)
        return ids_as_rows(some)

    loaded = made(forward)
    loaded.submit(batch([[1]]))
    loaded.submit(batch([[2]]))  # would block for ever if only one fitted
    gate.set()
    assert [loaded.collect()[0] for _ in range(2)] == [1, 2]
    loaded.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("some\nlong story"), EngineErrorKind.FAILED),
        (IndexError(), EngineErrorKind.FAILED),
        (MemoryError(), EngineErrorKind.OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate"), EngineErrorKind.OUT_OF_MEMORY),
    ],
)
def test_a_failed_batch_is_answered_and_the_next_one_computed(error: Exception, kind: EngineErrorKind) -> None:
    loaded = made(failing(error))
    loaded.submit(batch([[9]]))
    loaded.submit(batch([[1]]))
    ticket, failed = loaded.collect()
    assert isinstance(failed, EngineError)
    assert (ticket, failed.kind) == (1, kind)
    assert type(error).__name__ in str(failed)
    assert "\n" not in str(failed)
    assert isinstance(loaded.collect()[1], dict)
    loaded.close()


def test_torch_itself_running_out_of_memory_is_known() -> None:
    loaded = made(lambda some: torch.empty(1 << 50))
    loaded.submit(batch([[1]]))
    _, failed = loaded.collect()
    assert isinstance(failed, EngineError)
    assert failed.kind is EngineErrorKind.OUT_OF_MEMORY
    loaded.close()


def test_an_empty_sequence_is_not_given_its_neighbours_row() -> None:
    loaded = made(ids_as_rows)
    loaded.submit(Batch("m", OutputKind.POOLED, np.array([1, 2], np.int32), np.array([0, 0, 2], np.int32)))
    assert isinstance(loaded.collect()[1], EngineError)
    loaded.close()


def test_an_id_outside_the_vocabulary_fails_its_batch_alone(tiny: Path) -> None:
    loaded = load(tiny)
    loaded.submit(batch([[5, 100_000]]))
    assert isinstance(loaded.collect()[1], EngineError)
    assert raw_rows(loaded, [[5, 6]]).shape == (1, loaded.info.dimensions)
    loaded.close()


def test_each_stream_computes_in_one_thread_beside_the_others() -> None:
    seen = []
    together = threading.Barrier(3)

    def forward(some: Batch) -> torch.Tensor:
        together.wait(PATIENCE)
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return ids_as_rows(some)

    loaded = made(forward, streams=3)
    tickets = {loaded.submit(batch([[number]])) for number in (1, 2, 3)}
    assert {loaded.collect()[0] for _ in range(3)} == tickets
    loaded.close()
    assert sorted(seen) == [("compute 0", 1), ("compute 1", 1), ("compute 2", 1)]


def test_closing_finishes_what_every_stream_has() -> None:
    gate = threading.Event()

    def forward(some: Batch) -> torch.Tensor:
        assert some.token_ids[0] != 1 or gate.wait(PATIENCE)
        return ids_as_rows(some)

    loaded = made(forward, streams=2)
    slow, quick, staged = (loaded.submit(batch([[number]])) for number in (1, 2, 3))
    loaded.close()
    assert [loaded.collect()[0] for _ in range(2)] == [quick, staged]
    gate.set()
    assert loaded.collect()[0] == slow
    with pytest.raises(EngineClosed):
        loaded.collect()


def test_streams_are_as_many_as_threads_may_be_used(tiny: Path) -> None:
    sequences = [arbitrary((seqlen, 5)) for seqlen in (3, 9, 20, 33)]
    single, several = load(tiny), load(tiny, num_threads=3)
    assert (several.limits.streams, several.limits.depth) == (3, 4)
    rows_of = {several.submit(batch(some)): raw_rows(single, some) for some in sequences}
    for _ in sequences:
        ticket, results = several.collect()
        assert isinstance(results, dict), results
        assert np.abs(results[OutputKind.POOLED].values - rows_of[ticket]).max() <= 1e-6
    single.close()
    several.close()


def test_a_model_that_notes_lengths_in_itself_is_run_by_one_thread(tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "model")
    change(folder / "config.json", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0})
    loaded = load(folder, num_threads=3)
    loaded.close()
    assert (loaded.limits.streams, loaded.limits.depth) == (1, 2)
