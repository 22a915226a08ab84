"""Verifying measures what a start would, anew each time, and leaves the cache as it is."""

from pathlib import Path

import pytest
import torch

from engine.fused import loading, weights
from engine.fused.offer import choose
from engine.fused.quantization import verify
from engine.fused.quantization.cache import QuantizedCache
from engine.fused.quantization.gate_answers import noise_of_bfloat16
from engine.fused.start import Phases
from tests.engine.fused.loaded import fp8_options
from tests.engine.tiny_models import save_tame


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save_tame("bert", tmp_path / "model")


@pytest.mark.holds("verify measures the same as a start")
def test_it_finds_what_a_start_finds_and_neither_reads_nor_writes_the_cache(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    loaded = loading.load(Phases(), name="m", reason="", options=fp8_options(tiny, cache))
    (kept,) = cache.rglob("*.safetensors")
    before = kept.stat()

    def fail(*_: object) -> None:
        raise AssertionError("the cache was asked")

    monkeypatch.setattr(QuantizedCache, "find", fail)
    monkeypatch.setattr(QuantizedCache, "put", fail)
    verified = verify.verify("m", fp8_options(tiny, cache))
    assert kept.stat() == before
    assert verified.outcome == loaded.outcome
    assert verified.outcome.passed
    assert (verified.outcome.num_texts, verified.dtype, verified.gpu) == (167, "float32", None)
    assert verified.outcome.num_tokens > 167
    assert "this is a CPU" in verified.with_auto
    assert verified.noise_floor is not None
    costs = {figure.name: figure.value for figure in verified.noise_floor.figures}
    found = {figure.name: figure.value for figure in verified.outcome.found.figures}
    assert found["minimum"] < costs["minimum"] < 1


def test_without_memory_there_is_no_noise_floor(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(weights, "open_model", full)
    assert noise_of_bfloat16(choose(fp8_options(tiny))) is None
