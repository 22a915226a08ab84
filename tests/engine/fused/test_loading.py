"""Whole fused engines: their rows, what a load on a GPU records, where kernels are kept, and how wrong ones show."""

import dataclasses
import logging
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from engine import registry
from engine.fused import loading, weights
from engine.fused.cuda_device import CudaDevice, Graph, on_recorder
from engine.fused.model.ops import AttentionRule, Tiles
from engine.fused.model.reference import ReferenceOps
from engine.fused.packing import Shape
from engine.fused.quantization import measures
from engine.fused.runner import NumRows
from engine.selftest import selfcheck
from engine.selftest.sample_ids import Sequences
from engine.transformers import engine as transformers
from engine.types import DeviceTrouble, Engine, EngineError, EngineErrorKind, ModelError, OutputKind, Results
from tests.engine.engines import results, rows_of
from tests.engine.fused.loaded import load, options
from tests.engine.fused.test_memory import QWEN3_8B
from tests.engine.tiny_models import arbitrary, batch, save_whole
from tests.tiers import full

SEQLENS = (5, 17, 1, 30, 9, 40)


def load_reference(folder: Path, **others: Any) -> Engine:
    return transformers.load(name="m", reason="asked", options=options(folder, **others))


def difference(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    assert rows.shape == expected.shape
    assert rows.dtype == np.float32
    return float(np.abs(rows - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    ("seqlens", "has_types", "others", "tolerance"),
    [
        (SEQLENS, True, {}, 1e-5),
        ((50, 50, 1), False, {"max_num_tokens": 101}, 1e-5),  # full, and no bucket is a multiple of what GPUs multiply
        (SEQLENS, False, {"dtype": "bfloat16"}, 5e-2),
    ],
    ids=["token types", "a full batch of awkward size", "bfloat16"],
)
def test_rows_are_those_of_the_transformers_engine(
    seqlens: tuple[int, ...], has_types: bool, others: dict[str, Any], tolerance: float, tiny: Path
) -> None:
    engine, reference = load(tiny, **others), load_reference(tiny)
    plain = batch(arbitrary(seqlens))
    made = dataclasses.replace(plain, token_type_ids=np.arange(sum(seqlens), dtype=np.int32) % 2 if has_types else None)
    (rows,), (expected,) = (results(one, made).values() for one in (engine, reference))
    assert difference(rows.values, expected.values) <= tolerance
    if has_types:
        (without,) = results(engine, plain).values()
        assert difference(without.values, expected.values) > 1e-3
    assert engine.info.dtype == others.get("dtype", "float32")
    engine.close()
    reference.close()


def test_limits_are_those_of_the_options_and_the_model(tiny: Path) -> None:
    limits = load(tiny, max_num_tokens=1000, max_num_seqs=7, max_seqlen=33).limits
    assert (limits.max_num_tokens, limits.max_num_seqs, limits.max_seqlen) == (1000, 7, 33)
    assert limits.token_buckets[-2:] == (768, 1000)
    assert (limits.streams, limits.depth) == (1, 2)
    assert load(tiny, max_num_tokens=None).limits.max_num_tokens == 16_384
    assert load(tiny, max_num_tokens=1).limits.max_num_tokens == 64  # the model's longest sequence


def test_an_id_outside_the_vocabulary_fails_its_batch_alone(tiny: Path) -> None:
    engine = load(tiny)
    engine.submit(batch([[10_000]]))
    _, failed = engine.collect()
    assert isinstance(failed, EngineError)
    assert failed.kind is EngineErrorKind.FAILED
    results(engine, batch([[5]]))


def test_the_registry_knows_it_and_the_phases_are_logged(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "embedline.engine"):
        engine = registry.load("fused", name="m", reason="asked", options=options(tiny))
    assert engine.info.engine == "fused"
    assert "m loaded in" in caplog.text
    assert all(phase in caplog.text for phase in ("import", "weights", "precision", "probe", "check"))
    assert [note for note in engine.info.notes if f"m: {note}" not in caplog.messages] == []
    assert engine.info.notes


def test_layers_that_stay_plain_where_fp8_was_asked_for_are_warned_of(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(measures, "MIN_P1", 1.1)
    load(tiny, quantization="fp8")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == "m: FP8 was requested, but 9 of 9 layers are not quantized"


@pytest.mark.parametrize("changes", [{"head_dim": 272}, {"hidden_size": 16_400}, {"embedding_size": 16_400}])
def test_sizes_that_kernels_can_not_take_are_refused(changes: dict[str, int]) -> None:
    weights._check_sizes(QWEN3_8B)
    with pytest.raises(ModelError, match=r"take (256|16384); --engine transformers may serve it$"):
        weights._check_sizes(dataclasses.replace(QWEN3_8B, **changes))  # type: ignore[arg-type]


@pytest.mark.usefixtures("on_hopper")
def test_each_shape_is_recorded_once_and_attention_is_not_chosen(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: Counter[Shape] = Counter()
    record = CudaDevice._record

    def noted(device: CudaDevice, shape: Shape) -> Graph:
        recorded[shape] += 1
        return record(device, shape)

    monkeypatch.setattr(CudaDevice, "_record", noted)
    engine = load(tiny, max_num_tokens=2048)
    assert set(recorded.values()) == {1}
    assert {shape.num_tokens for shape in recorded} == {16, 32, 64, 2048}
    assert [note for note in engine.info.notes if "attention" in note] == []
    sequences = [np.array(ids, np.int32) for ids in arbitrary((5, 17))]
    rows = rows_of(engine, sequences)
    on_recorder(int)
    assert np.abs(rows - rows_of(load(tiny), sequences)).max() < 1e-5


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(("num_labels", "has_types"), [(1, True), (3, False)], ids=["reranker", "classifier"])
def test_single_queries_have_types_where_they_are_pairs(
    num_labels: int, has_types: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[Shape] = []
    record = CudaDevice._record

    def noted(device: CudaDevice, shape: Shape) -> Graph:
        recorded.append(shape)
        return record(device, shape)

    monkeypatch.setattr(CudaDevice, "_record", noted)
    folder = save_whole("bert", tmp_path / "model", AutoModelForSequenceClassification, num_labels=num_labels)
    load(folder, max_num_tokens=2048)
    assert any(shape.has_types for shape in recorded) == has_types
    assert {shape.outputs for shape in recorded} == {OutputKind.LOGITS}


@pytest.mark.usefixtures("on_hopper")
def test_kernels_of_queries_are_compiled_where_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each size of tiles, and once for many texts."""
    started: Counter[int] = Counter()
    start = CudaDevice.start

    def noted(device: CudaDevice, slot: int, shape: Shape, num_rows: NumRows) -> None:
        started[shape.block] += 1
        start(device, slot, shape, num_rows)

    folder = save_whole("bert", tmp_path / "model", AutoModelForMaskedLM)
    compare = loading.compare_with_reference

    def compared(*arguments: Any) -> None:
        compare(*arguments)
        monkeypatch.setattr(CudaDevice, "start", noted)

    monkeypatch.setattr(loading, "compare_with_reference", compared)
    monkeypatch.setattr(CudaDevice, "_record", lambda *_: pytest.fail("sparse rows are recorded"))
    load(folder, task="sparse")
    assert started == {16: 2, 32: 2, 64: 2}


class Kernels:
    """Takes the place of the kernels, which need a GPU: the same ops, with a fault in attention."""

    def __init__(self, fault: Callable[[AttentionRule], AttentionRule]) -> None:
        self._ops = ReferenceOps()
        self._fault = fault

    def __getattr__(self, name: str) -> object:
        return getattr(self._ops, name)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, rule: AttentionRule) -> Tensor:
        return self._ops.attend(query, key, value, tiles, self._fault(rule))


@pytest.mark.parametrize(("change", "is_right"), [(0, True), (1, False), *full((-1, False), (1000, False))])
def test_a_wrong_window(change: int, is_right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_whole("mistral", tmp_path / "model", AutoModel, max_position_embeddings=256, sliding_window=44)
    kernels = Kernels(lambda rule: dataclasses.replace(rule, window=(rule.window or 0) + change))
    monkeypatch.setattr(loading, "_ops", lambda _: kernels)
    if is_right:
        load(folder).close()
        return
    with pytest.raises(ModelError, match=r"kernels do not give the (POOLED|TOKENS) rows of plain torch"):
        load(folder)


def test_a_reference_without_memory_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_whole("mistral", tmp_path / "model", AutoModel)
    kernels = Kernels(lambda rule: rule)
    monkeypatch.setattr(loading, "_ops", lambda _: kernels)

    def no_memory(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def attend(query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, rule: AttentionRule) -> Tensor:
        return real(ReferenceOps(), query, key, value, tiles, rule)

    real = ReferenceOps.attend
    monkeypatch.setattr(kernels, "attend", attend)
    monkeypatch.setattr(ReferenceOps, "attend", no_memory)
    load(folder).close()
    assert "there is no memory for its reference" in caplog.text


def test_a_gpu_that_runs_out_of_memory_while_it_is_checked_ends_the_start_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernels(lambda rule: rule)
    monkeypatch.setattr(loading, "_ops", lambda _: kernels)
    answered = selfcheck.answered

    def answer(engine: Engine, sequences: Sequences, outputs: OutputKind | None = None) -> Results | EngineError:
        is_reference = engine.limits.max_num_seqs == 1
        if outputs and OutputKind.TOKENS in outputs and not is_reference:
            return EngineError(EngineErrorKind.OUT_OF_MEMORY, "CUDA out of memory")
        return answered(engine, sequences, outputs)

    monkeypatch.setattr(selfcheck, "answered", answer)
    with pytest.raises(DeviceTrouble, match="can't run the model: CUDA out of memory"):
        load(save_whole("mistral", tmp_path / "model", AutoModel))


def test_beside_the_kept_models(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    loading.keep_kernels(tmp_path / "cache", environment)
    assert environment == {"TRITON_CACHE_DIR": str(tmp_path / "cache" / "triton")}
    assert stat.S_IMODE((tmp_path / "cache" / "triton").stat().st_mode) == 0o700
    loading.keep_kernels(tmp_path / "cache", environment)  # there it is
    assert environment == {"TRITON_CACHE_DIR": str(tmp_path / "cache" / "triton")}


@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "TRITON_HOME"])
def test_what_the_user_says_stands(name: str, tmp_path: Path) -> None:
    environment = {name: "/elsewhere"}
    loading.keep_kernels(tmp_path, environment)
    assert environment == {name: "/elsewhere"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", ["group", "everybody", "file"])
def test_a_folder_of_others_is_not_used(wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "triton"
    if wrong == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o770 if wrong == "group" else 0o707)
    environment: dict[str, str] = {}
    with caplog.at_level(logging.WARNING):
        loading.keep_kernels(tmp_path, environment)
    assert environment == {}
    assert "compiled kernels are not cached in" in caplog.text


def test_triton_looks_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs")
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.setenv(name, "elsewhere")  # so that afterwards all is as it was before
        monkeypatch.delenv(name)
    loading.keep_kernels(tmp_path, os.environ)
    assert knobs.cache.dir == str(tmp_path / "triton")
