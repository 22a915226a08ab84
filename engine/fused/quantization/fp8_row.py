"""FP8 with a scale for each row of activations and each row of a weight: the product is torch._scaled_mm's.

There is nothing to calibrate, and a row's scale is its own, so no sequence changes another's rows. The formats are in
https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_mm.html (row-wise scaling).

Shapes: T rows, K numbers a row, N numbers a product.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.fused.model.linear import Linear, PlainLinear
from engine.fused.model.ops import QuantizedRows, Rows

MAX_FP8 = 448.0  # the largest float8_e4m3fn
_MULTIPLE = 16  # of K and N, as torch._scaled_mm wants it
# cuBLAS's word where it has no kernel for scales by row at some size, though one for the product itself: seen on Hopper
# with up to 256 rows of 9216 numbers (https://github.com/pytorch/ao/issues/4582), which is what `down` takes.
_NO_KERNEL = "CUBLAS_STATUS_NOT_SUPPORTED"


@dataclass(frozen=True, slots=True)
class Fp8RowLinear:
    """rows @ weight.T + bias of quantized rows."""

    weight: Tensor  # float8_e4m3fn [N, K]
    scales: Tensor  # float32 [1, N]
    bias: Tensor | None  # [N]
    dtype: torch.dtype  # of the product

    @property
    def is_quantized(self) -> bool:
        """See Linear."""
        return True

    def __call__(self, rows: Rows) -> Tensor:
        """See Linear."""
        assert isinstance(rows, QuantizedRows)
        try:
            return self._product(rows).to(self.dtype)
        except RuntimeError as error:
            if _NO_KERNEL not in str(error):
                raise
        return self._scaled_afterwards(rows).to(self.dtype)

    def _product(self, rows: QuantizedRows) -> Tensor:
        """[T, N]. Raises RuntimeError."""
        product_dtype = _product_dtype(self.weight, self.dtype)
        return torch._scaled_mm(
            rows.values,
            self.weight.t(),
            scale_a=rows.scales,
            scale_b=self.scales,
            bias=None if self.bias is None else self.bias.to(product_dtype),
            out_dtype=product_dtype,
            use_fast_accum=True,
        )

    def _scaled_afterwards(self, rows: QuantizedRows) -> Tensor:
        """float32 [T, N]: the product of numbers as they are stored, then scales and bias."""
        one = self.scales.new_ones(())
        product = torch._scaled_mm(
            rows.values, self.weight.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=True
        )
        product *= rows.scales
        product *= self.scales
        if self.bias is not None:
            product += self.bias
        return product

    def part(self, start: int, end: int) -> "Fp8RowLinear":
        """See Linear. Both bounds are multiples of 16."""
        assert start % _MULTIPLE == end % _MULTIPLE == 0
        bias = None if self.bias is None else self.bias[start:end]
        return Fp8RowLinear(self.weight[start:end], self.scales[:, start:end], bias, self.dtype)


class Fp8Row:
    """See Scheme."""

    name = "fp8_row"
    multiple = _MULTIPLE

    def quantize(self, linear: PlainLinear) -> Fp8RowLinear:
        """See Scheme."""
        weight = linear.weight.float()
        scales = weight.abs().amax(dim=1) / MAX_FP8
        scales = torch.where(scales == 0, 1.0, scales)
        values = (weight / scales[:, None]).clamp(-MAX_FP8, MAX_FP8).to(torch.float8_e4m3fn)
        return _checked(Fp8RowLinear(values, scales[None], linear.bias, linear.weight.dtype))

    def tensors(self, linear: Linear) -> dict[str, Tensor]:
        """See Scheme."""
        assert isinstance(linear, Fp8RowLinear)
        tensors = {"weight": linear.weight, "scales": linear.scales}
        return tensors if linear.bias is None else {**tensors, "bias": linear.bias}

    def restore(self, tensors: Mapping[str, Tensor], *, dtype: torch.dtype) -> Fp8RowLinear:
        """See Scheme."""
        if not {"weight", "scales"} <= set(tensors) <= {"weight", "scales", "bias"}:
            raise ValueError("not the tensors of a row-wise FP8 layer")
        return _checked(Fp8RowLinear(tensors["weight"], tensors["scales"], tensors.get("bias"), dtype))


def _checked(linear: Fp8RowLinear) -> Fp8RowLinear:
    weight, scales, bias = linear.weight, linear.scales, linear.bias
    if weight.dim() != 2 or any(size == 0 or size % _MULTIPLE for size in weight.shape):
        raise ValueError(f"the sizes of a weight {list(weight.shape)} are not multiples of {_MULTIPLE}")
    if (weight.dtype, scales.dtype) != (torch.float8_e4m3fn, torch.float32) or scales.shape != (1, len(weight)):
        raise ValueError(f"scales of {list(scales.shape)} do not fit a weight of {list(weight.shape)}")
    if bias is not None and bias.shape != (len(weight),):
        raise ValueError(f"a bias of {list(bias.shape)} does not fit a weight of {list(weight.shape)}")
    return linear


def _product_dtype(weight: Tensor, dtype: torch.dtype) -> torch.dtype:
    """On CUDA scaled by rows there is no product but bfloat16; on a CPU there is any."""
    return torch.bfloat16 if weight.is_cuda else dtype
