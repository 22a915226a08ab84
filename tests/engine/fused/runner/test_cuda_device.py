"""The CUDA device: its bookkeeping with a pretended torch.cuda. tests/engine/fused/gpu has the real thing."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from engine.fused import cuda_device
from engine.fused.cuda_device import CudaDevice, DeviceSizes, Graph, on_recorder
from engine.fused.engine import FusedEngine
from engine.fused.model.ops import RaggedRows
from engine.fused.packing import Shape, layout, views
from engine.fused.runner import Compute, Device, DeviceRows, HostDevice
from engine.selftest import selfcheck
from engine.types import Batch, EngineError, EngineErrorKind, OutputKind, Results
from tests.engine.engines import rows_of
from tests.engine.fused.loaded import load
from tests.engine.fused.model.models import CPU
from tests.engine.fused.runner.pretended_cuda import PretendedCuda
from tests.engine.fused.runner.recording import DEPTH, SHAPES, engine_around, of_lengths
from tests.engine.fused.runner.recording import rows_of_block as compute_rows
from tests.engine.tiny_models import arbitrary, batch
from tests.server_e2e.running import PATIENCE
from tests.tiers import full

BLOCK_SIZE = layout(SHAPES.largest).size
SIZES = DeviceSizes(
    block_size=BLOCK_SIZE,
    num_slots=DEPTH,
    max_num_seqs=SHAPES.max_num_seqs,
    row_sizes={OutputKind.POOLED: 2, OutputKind.LOGITS: 2},
)
SMALL, LARGE = (3, 1, 5), (20, 20)  # lengths: 9 tokens are recorded, 40 are not


class Counting:
    """An engine.fused.runner.Compute."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, block: torch.Tensor, shape: Shape) -> dict[OutputKind, DeviceRows]:
        self.num_calls += 1
        return {kind: compute_rows(block.numpy(), shape, kind) for kind in shape.outputs}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> PretendedCuda:
    return PretendedCuda(monkeypatch)


@pytest.fixture
def compute() -> Counting:
    return Counting()


@pytest.fixture
def engine(cuda: PretendedCuda, compute: Counting) -> FusedEngine:
    return engine_around(CudaDevice(compute, CPU, SIZES))


def devices(compute: Compute) -> tuple[Device, Device]:
    """Both, where CUDA is pretended."""
    host = HostDevice(compute, block_size=BLOCK_SIZE, num_slots=DEPTH, num_threads=1)
    return CudaDevice(compute, CPU, SIZES), host


def asking(made: Batch, outputs: OutputKind) -> Batch:
    return Batch("m", outputs, made.token_ids, made.cu_seqlens)


def answer(engine: FusedEngine, made: Batch) -> dict[OutputKind, NDArray[np.float32]]:
    engine.submit(made)
    return collected(engine)


def collected(engine: FusedEngine) -> dict[OutputKind, NDArray[np.float32]]:
    _, results = engine.collect()
    on_recorder(int)  # what is recorded meanwhile is there for the next batch
    assert isinstance(results, dict), results
    return {kind: rows.values for kind, rows in results.items()}


def expected(made: Batch) -> NDArray[np.float32]:
    return np.stack((made.token_ids[made.cu_seqlens[:-1]], np.diff(made.cu_seqlens)), axis=1).astype(np.float32)


def test_rows_are_right_called_and_replayed_in_both_slots(engine: FusedEngine) -> None:
    kept = []
    for first, lengths in zip(range(10, 130, 10), itertools.cycle([SMALL, LARGE, (1,), (2, 9)]), strict=False):
        pair = [of_lengths(first, lengths), of_lengths(first + 5, lengths)]
        for made in pair:
            engine.submit(made)
        kept += [(made, collected(engine)[OutputKind.POOLED]) for made in pair]
    for made, rows in kept:  # later batches have not written over them
        assert rows.dtype == np.float32
        assert np.array_equal(rows, expected(made))


def test_a_shape_is_called_twice_recorded_and_then_replayed(
    engine: FusedEngine, cuda: PretendedCuda, compute: Counting
) -> None:
    for _ in range(4):
        answer(engine, of_lengths(1, SMALL))
    assert cuda.events.count("record") == 1
    assert cuda.events.count("replay") == 2
    assert compute.num_calls == 2 + 2


def test_the_host_waits_for_finished_rows_and_nothing_else(engine: FusedEngine, cuda: PretendedCuda) -> None:
    for lengths in (SMALL, LARGE, SMALL):
        answer(engine, of_lengths(1, lengths))
    del cuda.events[:]
    answer(engine, of_lengths(1, SMALL))
    assert cuda.events == [
        "on computing",
        "replay",
        "on copying",
        "copying waits for computing",
        "host waits for event of copying",
    ]


@pytest.mark.parametrize(
    "made", [of_lengths(1, LARGE), asking(of_lengths(1), OutputKind.TOKENS)], ids=["large", "token rows"]
)
def test_what_gains_nothing_by_it_is_not_recorded(made: Batch, engine: FusedEngine, cuda: PretendedCuda) -> None:
    for _ in range(3):
        answer(engine, made)
    assert "record" not in cuda.events


def test_token_rows_and_pooled_rows_of_one_batch(engine: FusedEngine) -> None:
    made = asking(of_lengths(3), OutputKind.POOLED | OutputKind.TOKENS)
    found = answer(engine, made)
    assert np.array_equal(found[OutputKind.POOLED], expected(made))
    assert found[OutputKind.TOKENS][:, 0].tolist() == made.token_ids.tolist()


@pytest.mark.parametrize("outputs", [OutputKind.LOGITS, OutputKind.POOLED | OutputKind.LOGITS])
def test_scores_are_replayed_too(outputs: OutputKind, engine: FusedEngine, cuda: PretendedCuda) -> None:
    """And what was replayed for another kind does not write over them."""
    for first in (10, 20, 30, 40):
        made, others = asking(of_lengths(first, SMALL), outputs), of_lengths(first + 5, SMALL)
        engine.submit(made)
        engine.submit(others)
        rows = collected(engine)
        assert rows.keys() == set(outputs)
        for values in rows.values():
            assert np.array_equal(values, expected(made))
        assert np.array_equal(collected(engine)[OutputKind.POOLED], expected(others))
    assert cuda.events.count("record") == 2


# --- ragged rows


class RaggedCompute:
    """Weights of words: of a sequence each of its tokens' ids from 1 on, with the weight 0.5. Padding has some as well,
    behind them."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room  # for entries
        self.entries: list[torch.Tensor] = []

    def __call__(self, block: torch.Tensor, shape: Shape) -> dict[OutputKind, DeviceRows]:
        inputs = views(block, shape)
        ids = [torch.unique(part) for part in torch.tensor_split(inputs.token_ids, inputs.cu_seqlens[1:].tolist())]
        flat = torch.cat(ids).float()
        entries = torch.full((self.room, 2), torch.nan)
        num_kept = min(len(flat), self.room)
        entries[:num_kept, 0], entries[:num_kept, 1] = flat[:num_kept], 0.5
        self.entries.append(entries)
        counts = torch.tensor([len(part) for part in ids], dtype=torch.int32)
        found: dict[OutputKind, DeviceRows] = {OutputKind.SPARSE: RaggedRows(counts, entries)}
        if OutputKind.TOKENS in shape.outputs:
            found[OutputKind.TOKENS] = compute_rows(block.numpy(), shape, OutputKind.TOKENS)
        return found


RAGGED = batch([[7, 5, 7], [9], [5, 6, 8, 6]])
RAGGED_IDS, RAGGED_OFFSETS = [5, 7, 9, 5, 6, 8], [0, 2, 3, 6]


def ragged(engine: FusedEngine, outputs: OutputKind = OutputKind.SPARSE) -> Results | EngineError:
    engine.submit(asking(RAGGED, outputs))
    return engine.collect()[1]


@pytest.mark.parametrize("outputs", [OutputKind.SPARSE, OutputKind.SPARSE | OutputKind.TOKENS])
@pytest.mark.parametrize("number", [0, 1], ids=["cuda", "host"])
def test_ragged_rows_have_their_own_entries_and_no_more(number: int, outputs: OutputKind, cuda: PretendedCuda) -> None:
    engine = engine_around(devices(RaggedCompute())[number])
    for _ in range(3):
        results = ragged(engine, outputs)
        assert isinstance(results, dict), results
        assert results.keys() == set(outputs)
        rows = results[OutputKind.SPARSE]
        assert rows.values.tolist() == [[token, 0.5] for token in RAGGED_IDS]
        assert rows.offsets is not None
        assert rows.offsets.tolist() == RAGGED_OFFSETS
        assert rows.offsets.dtype == np.int32
    assert "record" not in cuda.events


def test_the_host_waits_for_counts_then_for_entries_and_for_no_later_batch(cuda: PretendedCuda) -> None:
    compute = RaggedCompute()
    engine = engine_around(CudaDevice(compute, CPU, SIZES))
    engine.submit(asking(RAGGED, OutputKind.SPARSE))
    engine.submit(asking(RAGGED, OutputKind.SPARSE))
    del cuda.events[:]
    engine.collect()
    assert cuda.events == [
        "host waits for event of copying",
        "on copying entries",
        "host waits for event of copying entries",
    ]


@pytest.mark.parametrize("number", [0, 1], ids=["cuda", "host"])
def test_more_entries_than_there_is_room_for_are_a_lack_of_memory(number: int, cuda: PretendedCuda) -> None:
    """For which a batch is cut in halves."""
    compute = RaggedCompute(room=len(RAGGED_IDS) - 1)
    engine = engine_around(devices(compute)[number])
    error = ragged(engine)
    assert isinstance(error, EngineError)
    assert error.kind is EngineErrorKind.OUT_OF_MEMORY
    compute.room += 1
    assert isinstance(ragged(engine), dict)


@pytest.mark.parametrize(("num_failures", "then"), [(1, ["replay"]), (2, [])], ids=["once", "for good"])
def test_recording_takes_the_memory_that_torch_keeps_and_without_any_batches_are_called(
    num_failures: int, then: list[str], engine: FusedEngine, cuda: PretendedCuda
) -> None:
    cuda.recording_failures = [torch.OutOfMemoryError("CUDA out of memory")] * num_failures
    for first in range(3):
        made = of_lengths(first, SMALL)
        assert np.array_equal(answer(engine, made)[OutputKind.POOLED], expected(made))
    seen = [event for event in cuda.events if event in ("record", "empty cache", "replay")]
    assert seen == ["record", "empty cache", "record", *then]


def failing(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def recording_until(may_end: threading.Event, cuda: PretendedCuda) -> Callable[..., Graph]:
    """A stand-in for `recorded`, which takes its time."""

    def recorded(*_: object, **__: object) -> Graph:
        assert may_end.wait(PATIENCE)
        cuda.events.append("recorded")
        return Graph(lambda: None, 10)

    return recorded


@pytest.mark.holds("A slot is reused only after its batch was collected")
def test_after_a_failure_blocks_are_free_before_they_are_used_again(
    engine: FusedEngine, cuda: PretendedCuda, compute: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Counting, "__call__", failing)
        engine.submit(of_lengths(1))
    _, error = engine.collect()
    assert isinstance(error, EngineError)
    assert error.kind is EngineErrorKind.OUT_OF_MEMORY
    assert cuda.events[-2:] == ["host waits for computing", "empty cache"]
    made = of_lengths(2)
    assert np.array_equal(answer(engine, made)[OutputKind.POOLED], expected(made))


def test_memory_is_given_back_only_between_recordings(
    engine: FusedEngine, cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch's allocator asserts. A shape is recorded until the failing batch waits for it."""
    may_end = threading.Event()
    monkeypatch.setattr(cuda_device, "recorded", recording_until(may_end, cuda))
    for _ in range(2):
        engine.submit(of_lengths(1, SMALL))
        engine.collect()
    monkeypatch.setattr(Counting, "__call__", failing)
    threading.Timer(0.2, may_end.set).start()
    engine.submit(of_lengths(1, SMALL))
    _, results = engine.collect()
    assert isinstance(results, dict)  # of the second try, which has the graph
    assert [event for event in cuda.events if event in ("recorded", "empty cache")] == ["recorded", "empty cache"]


def test_rows_of_another_dtype_become_float32(cuda: PretendedCuda) -> None:
    def compute(block: torch.Tensor, shape: Shape) -> dict[OutputKind, DeviceRows]:
        return {kind: torch.full((shape.num_tokens, 2), 1.5, dtype=torch.bfloat16) for kind in shape.outputs}

    for device in devices(compute):
        rows = answer(engine_around(device), asking(of_lengths(1), OutputKind.TOKENS))[OutputKind.TOKENS]
        assert rows.dtype == np.float32
        assert rows.tolist() == [[1.5, 1.5]] * 9


@pytest.mark.parametrize("pooling", ["cls", *full("mean", "last-token")])
def test_nan_in_padding_changes_nothing(pooling: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Word 0 is what padding looks up, and no sequence holds it. tests/engine/fused/gpu has the same on a GPU."""
    monkeypatch.setattr(selfcheck, "check", lambda engine, folder, *, dtype: None)  # it has sequences that hold it
    sequences = arbitrary((5, 17, 1, 30, 9, 40))
    before = _rows(tiny, sequences, pooling)
    tensors = load_file(tiny / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][0] = torch.nan
    save_file(tensors, tiny / "model.safetensors")
    assert np.array_equal(_rows(tiny, sequences, pooling), before)


def _rows(folder: Path, sequences: list[list[int]], pooling: str) -> NDArray[np.float32]:
    engine = load(folder, pooling=pooling)
    return rows_of(engine, [np.array(ids, np.int32) for ids in sequences])
