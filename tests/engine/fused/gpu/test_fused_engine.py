"""Whole engines on a GPU: graphs, batches in flight, padding, memory that runs out, and the quality gate."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from engine.fused import start as fused
from engine.fused.cuda_device import CudaDevice, Graph, Graphs, on_recorder
from engine.fused.engine import FusedEngine
from engine.fused.packing import Shape
from engine.fused.quantization import verify
from engine.machine import cuda_driver
from engine.model.coverage import Use
from engine.selftest import selfcheck
from engine.selftest.comparison import comparable
from engine.types import Batch, EngineError, EngineErrorKind, OutputKind
from tests.engine.engines import load_options, results, rows_of
from tests.engine.fused.model.models import BEGIN_ALIKE, NUM_ALIKE
from tests.engine.tiny_models import arbitrary, batch, save
from tests.parity.architectures import BGE_M3
from tests.parity.folders import save as save_for

pytestmark = pytest.mark.gpu

SEQLENS = (5, 17, 1, 30, 9, 40)
# Of the largest number: bfloat16 in another order, or another dtype. With each product summed in two parts that are
# rounded to bfloat16, these models' rows move by 0.02 at most on a CPU; another sequence's row is further off by far.
ALIKE = 5e-2


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save("bert", tmp_path / "model")


def load(folder: Path, **others: Any) -> FusedEngine:
    fixed = {"device": "cuda:0", "dtype": "auto", "max_num_tokens": 1024}
    return fused.load(name="m", reason="asked", options=load_options(folder, **{**fixed, **others}))


def sequences() -> list[NDArray[np.int32]]:
    return [np.array(ids, np.int32) for ids in arbitrary(SEQLENS)]


def batch_of(some: list[NDArray[np.int32]]) -> Batch:
    cu_seqlens = np.cumsum([0, *map(len, some)], dtype=np.int32)
    return Batch("m", OutputKind.POOLED, np.concatenate(some), cu_seqlens)


def called(engine: FusedEngine, some: list[NDArray[np.int32]]) -> NDArray[np.float32]:
    """Rows by kernels that are called one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graphs, "record_if_repeated", lambda *_: None)
        patch.setattr(Graphs, "find", lambda *_: None)
        return rows_of(engine, some)


def replayed(engine: FusedEngine, some: list[NDArray[np.int32]]) -> NDArray[np.float32]:
    """Rows by a graph."""
    for _ in range(2):  # a shape is recorded when it comes again
        rows_of(engine, some)
        on_recorder(int)  # waits for it
    find = Graphs.find

    def found(graphs: Graphs, shape: Shape) -> Graph:
        graph = find(graphs, shape)
        assert graph is not None, "no graph was recorded"
        return graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graphs, "find", found)
        return rows_of(engine, some)


def assert_near(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert np.abs(rows - expected).max() <= ALIKE * np.abs(expected).max()


@pytest.mark.parametrize("pooling", ["cls", "mean", "last-token"])
@pytest.mark.parametrize("family", ["bert", "qwen3", "gemma3_text, bidirectional"])
def test_calls_give_the_same_again_graphs_too_and_both_nearly_the_same(
    family: str, pooling: str, tmp_path: Path
) -> None:
    """Bit for bit, each for itself: cuBLAS may take other kernels on the thread that records."""
    engine = load(save(family, tmp_path / "model"), pooling=pooling)
    for some in (sequences(), sequences()[:1], sequences()[3:]):
        call, replay = called(engine, some), replayed(engine, some)
        assert np.array_equal(called(engine, some), call)
        assert np.array_equal(replayed(engine, some), replay)
        assert_near(replay, call)


def test_batches_in_flight_keep_apart(tiny: Path) -> None:
    engine = load(tiny)
    alone = rows_of(engine, sequences())
    for _ in range(50):
        for some in (sequences(), sequences()[::-1]):
            engine.submit(batch_of(some))
        for own in (alone, alone[::-1]):
            _, results = engine.collect()
            assert isinstance(results, dict), results
            assert_near(results[OutputKind.POOLED].values, own)


@pytest.mark.parametrize("pooling", ["cls", "mean", "last-token"])
def test_nan_in_padding_changes_nothing(pooling: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "check", lambda engine, folder, *, dtype: None)  # it has sequences that hold it
    engine = load(tiny, pooling=pooling)
    before = [rows_by(engine, sequences()) for rows_by in (called, replayed)]
    tensors = load_file(tiny / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][0] = torch.nan  # what padding looks up, and no sequence holds
    save_file(tensors, tiny / "model.safetensors")
    engine = load(tiny, pooling=pooling)
    for rows_by, expected in zip((called, replayed), before, strict=True):
        assert np.array_equal(rows_by(engine, sequences()), expected)


def test_memory_that_runs_out_fails_one_batch(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a graph is being recorded, too, which is when torch does not give memory back."""
    engine = load(tiny)
    before = called(engine, sequences())
    for _ in range(2):
        rows_of(engine, sequences())  # the second begins to record

    def greedy(*_: object) -> None:
        torch.empty(1 << 50, device="cuda:0")

    with monkeypatch.context() as patch:
        patch.setattr(CudaDevice, "_run", greedy)
        engine.submit(batch_of(sequences()))
    _, error = engine.collect()
    assert isinstance(error, EngineError)
    assert error.kind is EngineErrorKind.OUT_OF_MEMORY, error
    assert np.array_equal(called(engine, sequences()), before)
    assert_near(replayed(engine, sequences()), before)


def test_rows_are_near_those_of_the_cpu(tiny: Path) -> None:
    on_cpu = load(tiny, device="cpu", dtype="float32")
    rows, expected = (rows_of(engine, sequences()) for engine in (load(tiny), on_cpu))
    assert_near(rows, expected)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("BERT", Use.RERANK),
        ("ModernBERT", Use.CLASSIFY),
        ("BERT", Use.TOKEN_CLASSIFY),
        ("BERT", Use.SPARSE),
        ("BERT", Use.LATE_INTERACTION),
        (BGE_M3, Use.EMBED),
        ("Qwen3", Use.GENERATIVE_RERANK),
    ],
)
def test_every_output_is_near_that_of_the_cpu(name: str, use: Use, tmp_path: Path) -> None:
    folder = save_for(name, use, tmp_path / "model")
    pooling = "cls" if use is Use.EMBED else None
    on_cpu, found = load(folder, pooling=pooling, device="cpu", dtype="float32"), load(folder, pooling=pooling)
    outputs = found.info.outputs
    for kind in outputs:
        expected = selfcheck.results_of(on_cpu, sequences(), kind)[kind]
        for _ in range(3):  # the third is a graph's, where there is one
            rows = selfcheck.results_of(found, sequences(), kind)[kind]
            on_recorder(int)
            assert_near(*comparable(kind, rows, expected))
    together = selfcheck.results_of(found, sequences(), outputs)
    assert OutputKind(sum(together)) == outputs


@pytest.mark.parametrize("pooling", ["mean", "last-token"])
def test_sequences_that_begin_alike(pooling: str, tmp_path: Path) -> None:
    """Called and by a graph, and beside a batch of the same size that shares nothing."""
    engine = load(save("qwen3", tmp_path / "model"), pooling=pooling)
    assert engine.info.shares_prefixes
    for kind in (OutputKind.POOLED, OutputKind.TOKENS):
        sharing = dataclasses.replace(batch(BEGIN_ALIKE, shared=NUM_ALIKE), outputs=kind)
        whole = dataclasses.replace(sharing, shared=None)
        expected = results(engine, whole)[kind].values
        for _ in range(3):  # the third is a graph's, where there is one
            for asked in (sharing, whole):
                assert_near(results(engine, asked)[kind].values, expected)
                on_recorder(int)


@pytest.mark.usefixtures("float8")
def test_the_quality_gate(minilm_folder: Path) -> None:
    options = load_options(minilm_folder, device="cuda:0", dtype="auto", quantization="fp8", max_num_tokens=None)
    verified = verify.verify("m", options)
    outcome = verified.outcome
    assert outcome.passed
    assert outcome.found.passes
    assert len(outcome.quantized) + len(outcome.reverted) == 18
    assert "FP8 would gain little" in verified.with_auto


def test_the_driver_agrees_with_torch() -> None:
    found, indices = cuda_driver.find(), range(torch.cuda.device_count())
    assert [gpu.capability for gpu in found.gpus] == [torch.cuda.get_device_capability(index) for index in indices]
    assert [gpu.name for gpu in found.gpus] == [torch.cuda.get_device_name(index) for index in indices]
