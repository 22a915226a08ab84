"""What the GPU benchmark counts: operations of models and of products."""

import pytest
import torch

from benchmarks.gpu.products import Product, product_call
from benchmarks.gpu.random_models import build
from benchmarks.gpu.shapes import BERT_BASE, BGE_M3, MINILM, QWEN3_06B, QWEN3_4B, QWEN3_8B, TINY, Shape
from benchmarks.gpu.targets import FP8_BLOCK, FP8_ROW, FP8_TENSOR
from benchmarks.gpu.targets import PRODUCT_BF16 as BF16


@pytest.mark.parametrize(
    ("shape", "millions", "gigaflop"),
    [
        (MINILM, 10.6, {128: 0.022, 512: 0.026}),
        (BERT_BASE, 84.9, {128: 0.175, 512: 0.189}),
        (BGE_M3, 302, {128: 0.617, 512: 0.654, 2048: 0.805, 8192: 1.409}),
        (QWEN3_06B, 440, {128: 0.895, 512: 0.940, 2048: 1.116, 8192: 1.820}),
        (QWEN3_4B, 3633, {128: 7.304, 512: 7.418, 2048: 7.871, 8192: 9.683}),
        (QWEN3_8B, 6946, {128: 13.93, 512: 14.04, 2048: 14.50, 8192: 16.31}),
    ],
    ids=lambda value: value.name if isinstance(value, Shape) else "",
)
def test_operations_of_a_token(shape: Shape, millions: float, gigaflop: dict[int, float]) -> None:
    """Computed by hand from the models' configurations."""
    assert shape.num_linear_parameters / 1e6 == pytest.approx(millions, rel=2e-3)
    for seqlen, expected in gigaflop.items():
        assert shape.flop_per_token(seqlen) / 1e9 == pytest.approx(expected, rel=1e-3, abs=6e-4)


@pytest.mark.parametrize("shape", TINY, ids=lambda shape: shape.name)
def test_a_shape_is_that_of_the_model_made_of_it(shape: Shape) -> None:
    module = build(shape, torch.device("cpu")).module
    products = sum(parameter.numel() for name, parameter in module.named_parameters() if _is_product(name, parameter))
    assert products == shape.num_linear_parameters


def _is_product(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() == 2 and "embed" not in name and "pooler" not in name


def test_pruning_saves_what_one_layer_does_for_tokens_that_nobody_asked_for() -> None:
    assert MINILM.pruned_share(128) == 1.0
    assert 0.97 < QWEN3_8B.pruned_share(128) < 0.98
    assert 0.95 < BGE_M3.pruned_share(512) < 0.975
    assert QWEN3_06B.pruned_share(1) == 1.0


@pytest.mark.parametrize("precision", [BF16, FP8_ROW, FP8_TENSOR])
def test_a_product_is_what_it_says(precision: str) -> None:
    size = Product(num_rows=32, num_columns=48, depth=256)
    got = product_call(size, precision, torch.device("cpu"), 3)()
    expected = product_call(size, BF16, torch.device("cpu"), 3)()
    assert isinstance(got, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    assert got.shape == (32, 48)
    assert (got.float() - expected.float()).norm() / expected.float().norm() < 0.06
    assert size.flop == 2 * 32 * 48 * 256


def test_scales_of_blocks_have_their_shapes() -> None:
    """No CPU multiplies them, so shapes are all that can be checked here."""
    call = product_call(Product(num_rows=256, num_columns=128, depth=384), FP8_BLOCK, torch.device("cpu"), 0)
    rows, weight, row_scales, weight_scales = call.args  # type: ignore[attr-defined]
    assert (row_scales.shape, row_scales.stride()) == ((256, 3), (1, 256))
    assert weight_scales.shape == (3, 1)
    assert (rows.shape, weight.shape) == ((256, 384), (384, 128))
