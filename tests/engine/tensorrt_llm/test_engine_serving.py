"""The engine as the worker drives it: what it promises, and what it does where the library or the GPU fails it."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.machine.cuda_driver import Gpu
from engine.tensorrt_llm.planning import package
from engine.types import (
    DeviceTrouble,
    EngineClosed,
    EngineError,
    EngineErrorKind,
    ModelError,
    OutputKind,
    ProcessSpent,
)
from tests.engine.engines import difference
from tests.engine.tensorrt_llm.models import Model, embedding
from tests.engine.tensorrt_llm.parity import TOLERANCE, distance_of
from tests.engine.tensorrt_llm.stand_in import H200, answer, graph_runner, library, load, place, rows
from tests.engine.tiny_models import HIDDEN_SIZE, VOCAB_SIZE, arbitrary, batch

RARE = 93  # an id that neither the samples of a start nor the tests' sequences have


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return embedding("qwen3", tmp_path_factory.mktemp("model") / "m", "last")


@pytest.fixture
def installed() -> Iterator[None]:
    with library():
        yield


def refusal(model: Model, kind: type[ModelError] = ModelError, **options: Any) -> str:
    """What it says that can't be loaded; one line."""
    with pytest.raises(kind) as caught:
        load(model.folder, **{**model.options, **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("installed")
def test_what_it_says_of_itself(model: Model) -> None:
    engine = load(model.folder, **model.options)
    info, limits = engine.info, engine.limits
    assert (info.engine, info.dtype, info.device) == ("tensorrt-llm", "bfloat16", "cuda:0")
    assert (info.outputs, info.dimensions, info.vocab_size) == (OutputKind.POOLED, HIDDEN_SIZE, VOCAB_SIZE)
    assert (limits.max_num_tokens, limits.max_num_seqs, limits.max_seqlen) == (256, 16, 64)
    assert (limits.depth, limits.streams, limits.overlaps) == (1, 1, False)
    assert info.notes[0].startswith("tensorrt_llm 1.4.0rc1")


@pytest.mark.usefixtures("installed")
def test_batches_are_answered_in_their_order_and_then_it_is_closed(model: Model) -> None:
    engine = load(model.folder, **model.options)
    tickets = []
    for sequence in arbitrary((3, 5, 7)):
        submitted = engine.submit(batch([sequence]))
        collected, results = engine.collect()
        assert collected == submitted
        assert not isinstance(results, EngineError)
        assert difference(results[OutputKind.POOLED].values, model.expected([sequence])) <= TOLERANCE
        tickets.append(submitted)
    assert len(set(tickets)) == 3
    last = engine.submit(batch([[5, 6]]))
    engine.close()
    assert engine.collect()[0] == last
    for _ in range(2):
        with pytest.raises(EngineClosed):
            engine.collect()


@pytest.mark.usefixtures("installed")
def test_the_largest_batch_and_full_numbers_of_sequences(model: Model) -> None:
    engine = load(model.folder, **model.options)
    for seqlens in ([64] * 4, [1] * 16, [2, 64, 1, 64, 64, 61]):
        sequences = arbitrary(seqlens)
        assert difference(rows(engine, sequences), model.expected(sequences)) <= TOLERANCE


@pytest.mark.usefixtures("installed")
def test_a_batch_that_is_refused_harms_no_other(model: Model) -> None:
    engine = load(model.folder, **model.options)
    refused = answer(engine, arbitrary([1] * 17))
    assert isinstance(refused, EngineError)
    assert refused.kind is EngineErrorKind.FAILED
    assert "exceeds max_batch_size" in str(refused)
    assert distance_of(engine, model) <= TOLERANCE


def test_limits_of_the_library_are_read_back(model: Model) -> None:
    with library("max_batch_size=3", "max_num_tokens=100"):
        limits = load(model.folder, **model.options).limits
        assert (limits.max_num_seqs, limits.max_num_tokens) == (3, 100)
    with library("max_seq_len=20"):
        assert "takes sequences of 20 tokens at most here, and the model those of 64" in refusal(model, ProcessSpent)
        assert load(model.folder, **model.options, max_seqlen=20).limits.max_seqlen == 20


def test_less_memory_than_the_largest_batch_needs(model: Model) -> None:
    with library("oom@tokens:100"):
        engine = load(model.folder, **model.options)
        assert engine.limits.max_num_tokens == 64
        assert difference(rows(engine, arbitrary([60])), model.expected(arbitrary([60]))) <= TOLERANCE
        failed = answer(engine, arbitrary([60, 60]))
        assert isinstance(failed, EngineError)
        assert failed.kind is EngineErrorKind.OUT_OF_MEMORY
    with library("oom@tokens:40"):
        assert "one sequence of 64 tokens runs out of memory on cuda:0" in refusal(model, DeviceTrouble)
    with library("oom@load"):
        assert "free memory there, or lower --max-batch-tokens" in refusal(model, DeviceTrouble)


def test_a_gpu_that_fails_is_lost_for_every_batch_after(model: Model) -> None:
    with library(f"device_error@token:{RARE}"):
        engine = load(model.folder, **model.options)
        assert np.isfinite(rows(engine, arbitrary([5]))).all()
        for sequences in ([[5, RARE]], arbitrary([5])):
            failed = answer(engine, sequences)
            assert isinstance(failed, EngineError)
            assert failed.kind is EngineErrorKind.FATAL
    with library("device_error@load"):
        assert "cuda:0: tensorrt_llm 1.4.0rc1 can't load the model" in refusal(model, DeviceTrouble)


def test_rows_that_are_not_finite_or_not_their_own_end_the_start(model: Model) -> None:
    with library("nan"):
        assert "rows that are not finite" in refusal(model, ProcessSpent)
    with library("leaks"):
        assert "rows depend on the batch" in refusal(model, ProcessSpent)


def test_a_library_that_wants_a_tokenizer_is_given_one(model: Model) -> None:
    with library("needs_tokenizer"):
        assert distance_of(load(model.folder, **model.options), model) <= TOLERANCE


def test_versions_without_what_is_needed(model: Model, tmp_path: Path) -> None:
    assert "the package tensorrt_llm is not installed for this Python" in refusal(model)
    with library(where=place(tmp_path, "1.2.1")):
        assert "tensorrt_llm 1.2.1 is too old" in refusal(model)
    with library("no_encode"):
        assert "tensorrt_llm 1.4.0rc1 has no LLM.encode" in refusal(model)
    with library("no_raw_logits"):
        assert "has no return_raw_logits of LLM.encode" in refusal(model)
    assert package.NAME not in str(os.environ.get("PYTHONPATH"))


@pytest.mark.holds("TensorRT-LLM rows equal transformers' rows")
@pytest.mark.usefixtures("installed")
def test_graphs_pad_batches_and_rows_stay_the_same(model: Model) -> None:
    """Tokens that belong to no sequence are NaN on the stand-in, and a recorded shape may read no number back."""
    engine = load(model.folder, **model.options, tensorrt_llm_cuda_graphs=True)
    runner = graph_runner(engine)
    before = runner.num_replays
    assert distance_of(engine, model) <= TOLERANCE
    assert runner.num_replays > before


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_graphs_with_each_pooling(pooling: str, tmp_path: Path) -> None:
    model = embedding("llama", tmp_path / "m", pooling, is_causal=False)
    engine = load(model.folder, **model.options, tensorrt_llm_cuda_graphs=True)
    assert distance_of(engine, model) <= TOLERANCE
    assert graph_runner(engine).num_replays > 10


def test_a_version_without_graphs(model: Model) -> None:
    with library("no_graphs"):
        assert "leave --tensorrt-llm-cuda-graphs out" in refusal(model, ProcessSpent, tensorrt_llm_cuda_graphs=True)


@pytest.mark.usefixtures("installed")
def test_what_is_refused_before_the_library_is_imported(model: Model, tmp_path: Path) -> None:
    gpu = Gpu(0, "Tesla T4", (7, 5), 1 << 34)
    assert "has no bfloat16" in refusal(model, gpu=gpu)
    assert "needs an NVIDIA GPU" in refusal(model, device="cpu", gpu=None)
    assert "--dtype float32 is not for --engine tensorrt-llm" in refusal(model, dtype="float32")
    windowed = embedding("mistral", tmp_path / "m", "last", sliding_window=16)
    assert "computes attention without windows" in refusal(windowed)
    assert load(windowed.folder, **windowed.options, max_seqlen=16).limits.max_seqlen == 16


def test_another_gpu_is_the_only_one_that_is_seen(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with library():
        gpu = dataclasses.replace(H200, index=1)
        assert load(model.folder, **model.options, device="cuda:1", gpu=gpu).info.device == "cuda:1"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
        assert os.environ["TRTLLM_NO_USAGE_STATS"] == "1"
