"""The fused engine's kernels are held against plain torch at load: planted faults that alone and together agree."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModel

from engine.fused import loading
from engine.fused.model.ops import AttentionRule, Tiles
from engine.fused.model.reference import ReferenceOps
from engine.selftest import selfcheck
from engine.selftest.sample_ids import Sequences
from engine.types import DeviceTrouble, Engine, EngineError, EngineErrorKind, ModelError, OutputKind, Results
from tests.engine.fused.test_loading import load
from tests.engine.tiny_models import save_whole
from tests.tiers import full


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
    with pytest.raises(ModelError, match="kernels do not give the rows of plain torch"):
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
        if outputs is OutputKind.TOKENS and engine.limits.max_num_seqs > 1:  # not the reference, which takes one
            return EngineError(EngineErrorKind.OUT_OF_MEMORY, "CUDA out of memory")
        return answered(engine, sequences, outputs)

    monkeypatch.setattr(selfcheck, "answered", answer)
    with pytest.raises(DeviceTrouble, match="can't run the model: CUDA out of memory"):
        load(save_whole("mistral", tmp_path / "model", AutoModel))
