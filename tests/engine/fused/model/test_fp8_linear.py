"""Row-wise FP8 layers against float32 products, and the switch between plain and quantized layers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from engine.fused.model import linear as products
from engine.fused.model.linear import Fp8Linear, Linear, PlainLinear
from engine.fused.model.ops import QuantizedRows
from engine.fused.model.reference import ReferenceOps
from engine.fused.quantization.quantizing import QuantizableLinears

K, N, T = 256, 96, 33
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def plain(*, has_bias: bool = True, dtype: torch.dtype = torch.float32, rows: int = N) -> PlainLinear:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, K, generator=generator) * torch.logspace(-2, 1, rows)[:, None]
    bias = torch.randn(rows, generator=generator) if has_bias else None
    return PlainLinear(weight.to(dtype), None if bias is None else bias.to(dtype))


def rows(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(T, K, generator=torch.Generator().manual_seed(1)).to(dtype)


def quantized_rows(values: Tensor) -> QuantizedRows:
    return ReferenceOps().quantize(values)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_as_near_as_fp8_allows(dtype: torch.dtype, has_bias: bool) -> None:
    linear = plain(has_bias=has_bias, dtype=dtype)
    product = Fp8Linear.of(linear)(quantized_rows(rows(dtype)))
    assert product.dtype == dtype
    exact = functional.linear(
        rows(dtype).float(), linear.weight.float(), None if linear.bias is None else linear.bias.float()
    )
    relative = ((product.float() - exact).norm(dim=0) / exact.norm(dim=0)).max().item()  # of each column: its scale
    assert 0.005 < relative < 0.06


def test_products_are_those_of_the_numbers_that_are_stored() -> None:
    linear, values = Fp8Linear.of(plain()), quantized_rows(rows())
    assert linear.bias is not None
    exact = (values.values.double() * values.scales) @ (linear.weight.double() * linear.scales.t()).t() + linear.bias
    torch.testing.assert_close(linear(values).double(), exact, rtol=1e-4, atol=1e-4)


def test_the_largest_of_each_row_is_448() -> None:
    weight = plain().weight
    weight[5] = 0
    linear = Fp8Linear.of(PlainLinear(weight, None))
    largest = linear.weight.float().abs().amax(dim=1)
    assert largest[5] == 0
    assert linear.scales[0, 5] == 1
    assert (largest[torch.arange(N) != 5] == 448).all()


@pytest.mark.parametrize("has_bias", [False, True])
def test_torch_accepts_both_products_for_a_gpu(has_bias: bool) -> None:
    """As far as it looks at sizes and dtypes: nothing is computed."""
    with FakeTensorMode():
        weight, scales = torch.empty(N, K, dtype=torch.float8_e4m3fn, device="cuda"), torch.empty(1, N, device="cuda")
        bias = torch.empty(N, dtype=torch.float16, device="cuda") if has_bias else None
        linear = Fp8Linear(weight, scales, bias, torch.float16)
        values = QuantizedRows(weight.new_empty(T, K), scales.new_empty(T, 1))
        by_row, afterwards = linear.scaled_by_row(values), linear.scaled_afterwards(values)
    assert by_row.shape == afterwards.shape == (T, N)
    assert (by_row.dtype, afterwards.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("reason", ["CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`", "no algorithm"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_that_cublas_lacks_is_scaled_afterwards(
    dtype: torch.dtype,
    has_bias: bool,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    linear, values = Fp8Linear.of(plain(has_bias=has_bias, dtype=dtype)), quantized_rows(rows(dtype))
    expected = linear(values)
    product_of: Callable[..., Tensor] = products.scaled_mm

    def without_rows(*factors: Tensor, scale_a: Tensor, scale_b: Tensor, **others: Any) -> Tensor:
        if scale_a.numel() > 1:
            raise RuntimeError(reason)
        return product_of(*factors, scale_a=scale_a, scale_b=scale_b, **others)

    monkeypatch.setattr(products, "scaled_mm", without_rows)
    product = linear(values)
    assert product.dtype == dtype
    torch.testing.assert_close(product, expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(linear(values), product)
    assert caplog.text.count(reason) == 1  # said once
    torch.testing.assert_close(linear.part(32, 80)(values), expected[:, 32:80], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError, RuntimeError])
def test_a_device_at_fault_lacks_no_product(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    linear, values = Fp8Linear.of(plain()), quantized_rows(rows())

    def lost(*factors: Tensor, **others: Any) -> Tensor:
        raise error("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(products, "scaled_mm", lost)
    with pytest.raises(error, match="illegal memory access"):
        linear(values)
    assert not products.without_kernel


def test_rows_do_not_change_each_other() -> None:
    linear, values = Fp8Linear.of(plain()), rows()
    together = linear(quantized_rows(values))
    spoilt = values.clone()
    spoilt[3], spoilt[7], spoilt[9] = torch.nan, torch.inf, 1e30
    product = linear(quantized_rows(spoilt))
    clean = [row for row in range(T) if row not in (3, 7, 9)]
    assert torch.equal(product[clean], together[clean])
    assert product[3].isnan().all()
    alone = torch.cat([linear(quantized_rows(row[None])) for row in values])
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_part_gives_its_columns_and_shares_the_weight(has_bias: bool) -> None:
    linear, values = Fp8Linear.of(plain(has_bias=has_bias)), quantized_rows(rows())
    part = linear.part(32, 80)
    torch.testing.assert_close(part(values), linear(values)[:, 32:80], rtol=1e-6, atol=1e-6)
    assert part.weight.untyped_storage().data_ptr() == linear.weight.untyped_storage().data_ptr()
    with pytest.raises(AssertionError):
        linear.part(8, 80)


@pytest.mark.parametrize("has_bias", [False, True])
def test_layers_come_back_from_their_tensors(has_bias: bool) -> None:
    linear = Fp8Linear.of(plain(has_bias=has_bias))
    tensors = linear.tensors
    assert set(tensors) == ({"weight", "scales", "bias"} if has_bias else {"weight", "scales"})
    restored = Fp8Linear.restored(tensors, dtype=torch.float32)
    values = quantized_rows(rows())
    assert torch.equal(restored(values), linear(values))


WEIGHT, SCALES = torch.zeros(32, 16, dtype=torch.float8_e4m3fn), torch.ones(1, 32)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"weight": WEIGHT},
        {"weight": WEIGHT, "scales": SCALES, "more": SCALES},
        {"weight": WEIGHT.float(), "scales": SCALES},
        {"weight": WEIGHT, "scales": SCALES.bfloat16()},
        {"weight": WEIGHT, "scales": SCALES[0]},
        {"weight": WEIGHT, "scales": SCALES[:, :16]},
        {"weight": WEIGHT, "scales": SCALES, "bias": torch.ones(16)},
        {"weight": WEIGHT[:17], "scales": SCALES[:, :17]},
        {"weight": WEIGHT[0], "scales": SCALES},
    ],
)
def test_other_tensors_are_refused(tensors: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"not the tensors|multiples of 16|do not fit|does not fit"):
        Fp8Linear.restored(tensors, dtype=torch.float32)


@pytest.mark.parametrize("shape", [(24, 32), (32, 24)])
def test_sizes_that_do_not_fit_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="multiples of 16"):
        Fp8Linear.of(PlainLinear(torch.ones(shape), None))


def test_the_switch_changes_just_what_differs() -> None:
    originals: dict[str, PlainLinear] = {name: plain(rows=16) for name in "abc"}
    linears: dict[str, Linear] = {**originals}
    asked: list[str] = []

    def again(name: str) -> PlainLinear:
        asked.append(name)
        return originals[name]

    switch = QuantizableLinears(linears, plain=again)
    switch.set(["a", "b"])
    assert switch.quantized == {"a", "b"}
    assert linears["a"].is_quantized
    kept = linears["b"]
    switch.set(["b", "c"])
    assert switch.quantized == {"b", "c"}
    assert linears["b"] is kept
    assert linears["a"] is originals["a"]
    assert asked == ["a"]
    switch.set([])
    assert linears == originals


def test_the_switch_waits_for_a_gpu_whose_weights_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    layer = plain(rows=16)
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda:1"))

    made = Fp8Linear.of(layer)

    def of(linear: PlainLinear) -> Fp8Linear:
        assert not waited
        return made

    monkeypatch.setattr(Fp8Linear, "of", of)
    linears: dict[str, Linear] = {"a": PlainLinear(on_gpu, None), "b": PlainLinear(on_gpu, None)}
    switch = QuantizableLinears(linears, plain=lambda _: PlainLinear(on_gpu, None))
    switch.set(["a", "b"])
    assert waited == [torch.device("cuda:1")]
    switch.set(["a", "b"])
    assert len(waited) == 1
    switch.set(["a"])
    assert len(waited) == 2
