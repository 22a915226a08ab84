"""Row-wise FP8 products on a GPU: of the numbers that are stored, and at shapes for which cuBLAS may have none."""

import pytest
import torch

from engine.fused.model.linear import Fp8Linear, PlainLinear
from engine.fused.model.reference import ReferenceOps

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("float8")]

# A product is rounded to bfloat16 (2^-9 of a number at most), after sums of about 14 bits in Hopper's tensor cores.
DEVIATION = 1e-2


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_are_those_of_the_numbers_that_are_stored(dtype: torch.dtype, has_bias: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    weight = (
        torch.randn(96, 256, device="cuda", generator=generator) * torch.logspace(-2, 1, 96, device="cuda")[:, None]
    )
    bias = torch.randn(96, device="cuda", generator=generator).to(dtype) if has_bias else None
    linear = Fp8Linear.of(PlainLinear(weight.to(dtype), bias))
    rows = ReferenceOps().quantize(torch.randn(33, 256, device="cuda", generator=generator).to(dtype))
    exact = (rows.values.double() * rows.scales) @ (linear.weight.double() * linear.scales.t()).t()
    exact += 0.0 if bias is None else bias
    for product, expected in ((linear(rows), exact), (linear.part(32, 80)(rows), exact[:, 32:80])):
        assert product.dtype == dtype
        deviation = (product - expected).norm(dim=0) / expected.norm(dim=0)  # of each column: its scale
        assert deviation.max() < DEVIATION


@pytest.mark.parametrize("num_rows", [1, 8, 16, 64, 256, 257, 1024])
def test_few_long_rows(num_rows: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    weight, values = (
        torch.randn(size, 12_288, device="cuda", dtype=torch.bfloat16, generator=generator) for size in (4096, num_rows)
    )
    product = Fp8Linear.of(PlainLinear(weight, None))(ReferenceOps().quantize(values)).float()
    exact = values.float() @ weight.float().t()
    assert (product - exact).norm() / exact.norm() < 0.06
