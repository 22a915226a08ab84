"""Which FP8 products a GPU can compute is tried at load; here a stand-in for cuBLAS refuses some sizes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.fused import loading
from engine.fused.model import linear
from engine.fused.model.linear import ProductSize
from engine.fused.packing import row_counts
from engine.fused.quantization import measures, quantizing
from engine.types import DeviceTrouble, ModelError, ModelInfo
from tests.engine.fused.loaded import load, load_fp8
from tests.engine.fused.model.models import CPU, SPEC
from tests.engine.tiny_models import save_tame

ROWS = (16, 256, 384)
PRODUCTS = {"gate_up": (64, 32), "down": (32, 48)}

Refuses = Callable[[ProductSize], bool]


def stand_in(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses, *, by_tensor: bool = False, error: type[Exception] = RuntimeError
) -> list[ProductSize]:
    """A product that has no kernel for some sizes, with scales by row, or by tensor too. What was asked for."""
    product: Callable[..., Tensor] = linear.scaled_mm
    asked: list[ProductSize] = []

    def computed(rows: Tensor, weight: Tensor, *, scale_a: Tensor, scale_b: Tensor, **others: Any) -> Tensor:
        size = ProductSize(len(rows), weight.shape[1], weight.shape[0])
        asked.append(size)
        if refuses(size) and (by_tensor or scale_b.numel() > 1):
            raise error("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`")
        return product(rows, weight, scale_a=scale_a, scale_b=scale_b, **others)

    monkeypatch.setattr(linear, "scaled_mm", computed)
    return asked


def probe() -> dict[str, tuple[int, ...]]:
    linear.probe_products(PRODUCTS, row_counts=ROWS, device=CPU, dtype=torch.bfloat16)
    return linear.fallbacks(PRODUCTS)


def is_small_down(size: ProductSize) -> bool:
    return size.k == 48 and size.num_rows <= 256


def test_every_size_is_tried_and_those_without_a_kernel_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(monkeypatch, is_small_down)
    found = probe()
    assert {(size.num_rows, size.n, size.k) for size in asked} == {(m, *nk) for m in ROWS for nk in PRODUCTS.values()}
    assert found == {"down": (16, 256)}
    assert linear.note_of_fallbacks(found).endswith("which is slower: down with 16, 256 rows")


def test_where_nothing_is_refused_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda _: False)
    assert probe() == {}


def test_a_device_without_either_kernel_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, is_small_down, by_tensor=True)
    with pytest.raises(ModelError, match=r"no FP8 product for down \(N 32, K 48\) with 16 rows .* --quantization none"):
        probe()


def test_sizes_without_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(monkeypatch, lambda size: size.num_rows > 16, error=torch.OutOfMemoryError)
    assert probe() == {}
    assert {size.num_rows for size in asked} == {16, 256}


def test_a_lost_device_is_not_taken_for_a_missing_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda _: True, error=torch.AcceleratorError)
    with pytest.raises(torch.AcceleratorError):
        probe()


def test_the_products_are_those_of_the_quantized_layers_and_of_the_parts_of_qkv() -> None:
    found = linear.products_of(SPEC, ["layers.0.qkv", "layers.1.down"])
    assert found == {"qkv": (4096, 1024), "q": (2048, 1024), "kv": (2048, 1024), "down": (1024, 3072)}


@pytest.mark.parametrize(("max_num_tokens", "max_num_seqs"), [(512, 4096), (100, 40), (16_384, 4096)])
def test_row_counts_are_those_of_batches(max_num_tokens: int, max_num_seqs: int) -> None:
    counts = row_counts(max_num_tokens, max_num_seqs)
    assert list(counts) == sorted(set(counts))
    assert {1, 8, 16, 32} <= set(counts)
    assert counts[-1] == -(-max_num_tokens // 16) * 16
    assert (max_num_seqs in counts) == (max_num_seqs <= counts[-1])


def test_what_falls_back_is_in_info(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a CPU nothing is probed, so the gate's own batches find it."""
    stand_in(monkeypatch, lambda _: True)
    engine = load_fp8(save_tame("bert", tmp_path / "model"), max_num_tokens=256)
    engine.close()
    (note,) = (note for note in engine.info.notes if "scaled afterwards" in note)
    named = re.findall(r"(\w+) with ([\d, ]+) rows", note)
    assert {name for name, _ in named} >= {"qkv", "gate_up", "down"}
    assert engine.info.num_fallback_products == sum(len(counts.split(", ")) for _, counts in named) > 0
    assert "no row-wise FP8 kernel for" in caplog.text


@pytest.fixture
def gpu(on_hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a gate that lets any model pass."""
    monkeypatch.setattr(quantizing, "MIN_LINEAR_PARAMETERS", 0)
    monkeypatch.setattr(loading, "_MAX_QUERY", 16)
    for limit in ("MIN_MEDIAN", "MIN_P1", "MIN_OVERLAP"):
        monkeypatch.setattr(measures, limit, -1)


def start(folder: Path, cache_dir: Path, quantization: str) -> ModelInfo:
    engine = load(folder, cache_dir, quantization=quantization, max_num_tokens=256)
    engine.close()
    return engine.info


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("quantization", ["auto", "fp8"])
def test_without_a_product_auto_serves_the_plain_model_whether_a_quantized_one_is_kept_or_not(
    quantization: str, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache_dir = save_tame("bert", tmp_path / "model"), tmp_path / "cache"
    if is_kept:
        assert start(folder, cache_dir, quantization).dtype == "fp8"
        assert any("taken from" in note for note in start(folder, cache_dir, quantization).notes)
    stand_in(monkeypatch, lambda _: True, by_tensor=True)
    if quantization == "fp8":
        with pytest.raises(ModelError, match="there is no FP8 product for"):
            start(folder, cache_dir, quantization)
        return
    info = start(folder, cache_dir, quantization)
    assert info.dtype == "float32"
    assert any(note.startswith("not quantized: there is no FP8 product for") for note in info.notes)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("quantization", ["auto", "fp8"])
def test_a_device_that_is_lost_while_products_are_tried_ends_the_start_in_one_line(
    quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, lambda _: True, error=torch.AcceleratorError)
    with pytest.raises(DeviceTrouble, match=r"^cpu was lost while FP8 products were tried .*: AcceleratorError: CUDA"):
        start(save_tame("bert", tmp_path / "model"), tmp_path / "cache", quantization)
