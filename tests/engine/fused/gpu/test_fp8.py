"""Row-wise FP8 products on a GPU: against the CPU's, and at shapes for which cuBLAS may have none."""

import pytest
import torch

from engine.fused.model.linear import Fp8Linear, PlainLinear
from engine.fused.model.ops import QuantizedRows
from engine.fused.model.reference import ReferenceOps

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("float8")]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_are_those_on_the_cpu(dtype: torch.dtype, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 256, generator=generator) * torch.logspace(-2, 1, 96)[:, None]
    bias = torch.randn(96, generator=generator).to(dtype) if has_bias else None
    on_cpu = Fp8Linear.of(PlainLinear(weight.to(dtype), bias))
    values = ReferenceOps().quantize(torch.randn(33, 256, generator=generator).to(dtype))
    there = None if on_cpu.bias is None else on_cpu.bias.cuda()
    on_gpu = Fp8Linear(on_cpu.weight.cuda(), on_cpu.scales.cuda(), there, dtype)
    on_gpu_values = QuantizedRows(values.values.cuda(), values.scales.cuda())
    for gpu, cpu in ((on_gpu, on_cpu), (on_gpu.part(32, 80), on_cpu.part(32, 80))):
        product, expected = gpu(on_gpu_values), cpu(values)
        assert product.dtype == dtype
        torch.testing.assert_close(product.cpu().float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("num_rows", [1, 8, 16, 64, 256, 257, 1024])
def test_few_long_rows(num_rows: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    weight, values = (
        torch.randn(size, 12_288, device="cuda", dtype=torch.bfloat16, generator=generator) for size in (4096, num_rows)
    )
    product = Fp8Linear.of(PlainLinear(weight, None))(ReferenceOps().quantize(values)).float()
    exact = values.float() @ weight.float().t()
    assert (product - exact).norm() / exact.norm() < 0.06
