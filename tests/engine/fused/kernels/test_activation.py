"""Activations and the quantizing of rows, against the reference."""

import pytest
import torch

from engine.fused.kernels import TritonOps
from engine.fused.model.ops import QuantizedRows
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.kernels.samples import DEVICE, DTYPES, Samples, assert_near, assert_quantized_alike
from tests.tiers import full_but

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [384, 1000])
def test_activations(width: int, activation: str, is_gated: bool, dtype: torch.dtype) -> None:
    rows = Samples(width).rows(3, 2 * width if is_gated else width, dtype) * 3
    actual = TritonOps().activate(rows, activation, is_gated=is_gated, is_quantized=False)
    expected = ReferenceOps().activate(rows, activation, is_gated=is_gated, is_quantized=False)
    assert isinstance(actual, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    assert_near(actual, expected)


@pytest.mark.parametrize("dtype", full_but(DTYPES[:1], DTYPES))
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [1152, 3072, 5000, 16400])  # in one block, in three, and more than are held
def test_quantized_activations(width: int, activation: str, is_gated: bool, dtype: torch.dtype) -> None:
    rows = Samples(width).rows(2, 2 * width if is_gated else width, dtype) * 3
    actual = TritonOps().activate(rows, activation, is_gated=is_gated, is_quantized=True)
    expected = ReferenceOps().activate(rows, activation, is_gated=is_gated, is_quantized=True)
    assert isinstance(actual, QuantizedRows)
    assert isinstance(expected, QuantizedRows)
    assert_quantized_alike(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 384, 4096, 20000])
def test_quantized_rows(width: int, dtype: torch.dtype) -> None:
    rows = Samples(width).rows(3, width, dtype)
    assert_quantized_alike(TritonOps().quantize(rows), ReferenceOps().quantize(rows))


@pytest.mark.parametrize("width", [256, 20480])
def test_numbers_of_float8_come_back_as_they_were(width: int) -> None:
    """Whatever their scale, so long as it is a power of two."""
    finite = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0).to(DEVICE)
    rows = finite.repeat(3, width // 256) * torch.tensor([[1.0], [2.0**-30], [2.0**40]], device=DEVICE)
    quantized = TritonOps().quantize(rows)
    assert torch.equal(quantized.scales, torch.tensor([[1.0], [2.0**-30], [2.0**40]], device=DEVICE))
    assert torch.equal(quantized.values.float() * quantized.scales, rows)


def test_rows_may_lie_apart() -> None:
    rows = Samples(3).rows(8, 1000)[::2, 8:776]
    for is_gated in (False, True):
        actual = TritonOps().activate(rows, "silu", is_gated=is_gated, is_quantized=False)
        expected = ReferenceOps().activate(rows, "silu", is_gated=is_gated, is_quantized=False)
        assert isinstance(actual, torch.Tensor)
        assert isinstance(expected, torch.Tensor)
        assert_near(actual, expected)
    assert_quantized_alike(TritonOps().quantize(rows), ReferenceOps().quantize(rows))


@pytest.mark.parametrize("width", [384, 17000])
def test_a_row_of_nan_stays_one_and_spoils_no_other(width: int) -> None:
    rows = Samples(4).rows(4, width)
    clean = TritonOps().quantize(rows)
    rows[1, 300] = torch.nan
    spoilt = TritonOps().quantize(rows)
    others = [0, 2, 3]
    assert torch.equal(spoilt.values.float()[others], clean.values.float()[others])
    assert torch.equal(spoilt.scales[others], clean.scales[others])
    assert spoilt.scales[1].isnan().all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_survives_activation(activation: str) -> None:
    rows = Samples(5).rows(2, 64)
    rows[0, 3] = torch.nan
    activated = TritonOps().activate(rows, activation, is_gated=False, is_quantized=False)
    assert isinstance(activated, torch.Tensor)
    assert activated.isnan().nonzero().tolist() == [[0, 3]]


@pytest.mark.parametrize("width", [384, 17000])
def test_rows_of_zeros_and_of_almost_nothing(width: int) -> None:
    rows = torch.zeros(3, width, device=DEVICE)
    rows[1, 5] = 2.0**-126
    rows[2] = 1e-3
    quantized = TritonOps().quantize(rows)
    assert quantized.scales[0] == 1
    restored = quantized.values.float() * quantized.scales
    assert torch.equal(restored[:2], rows[:2])
    torch.testing.assert_close(restored[2], rows[2])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_far_from_zero(activation: str) -> None:
    rows = torch.linspace(-200, 200, 512, device=DEVICE)[None]
    actual = TritonOps().activate(rows, activation, is_gated=False, is_quantized=False)
    expected = ReferenceOps().activate(rows, activation, is_gated=False, is_quantized=False)
    assert isinstance(actual, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    assert_near(actual, expected)
