"""One product of matrices, x [M, K] by w [N, K] transposed, at each precision, with random numbers in both.

In FP8 both are float8_e4m3fn already: what quantizing costs is measured where it is done, with the kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.targets import FP8_BLOCK, FP8_ROW, FP8_TENSOR
from benchmarks.gpu.targets import PRODUCT_BF16 as BF16

_MAX_FP8 = 448.0
_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Its size."""

    num_rows: int  # M
    num_columns: int  # N
    depth: int  # K

    @property
    def flop(self) -> float:
        """Operations."""
        return 2.0 * self.num_rows * self.num_columns * self.depth

    @property
    def num_bytes(self) -> int:
        """Of both factors and the result, in bf16."""
        m, n, k = self.num_rows, self.num_columns, self.depth
        return 2 * (m * k + n * k + m * n)

    def __str__(self) -> str:
        return f"M={self.num_rows} N={self.num_columns} K={self.depth}"


def product_call(size: Product, precision: str, device: torch.device, seed: int) -> Callable[[], object]:
    """What computes it once, into or out of buffers of its own."""
    rows, weight, *scales = product_of(size, precision, device, seed)
    if precision == BF16:
        return partial(torch.mm, rows, weight.T, out=rows.new_empty(size.num_rows, size.num_columns))
    row_scales, weight_scales = scales
    return partial(
        torch._scaled_mm,
        rows,
        weight.T,
        row_scales,
        weight_scales if precision == FP8_TENSOR else weight_scales.T,
        out_dtype=torch.bfloat16,
        use_fast_accum=precision != FP8_BLOCK,  # whose sums are scaled block by block anyway
    )


def product_of(size: Product, precision: str, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Both factors at this precision; in FP8 with the scales of each."""
    rows, weight = factors(size, device, seed)
    if precision == BF16:
        return rows, weight
    (rows_fp8, row_scales), (weight_fp8, weight_scales) = (
        _SCHEMES[precision](values, is_weight=values is weight) for values in (rows, weight)
    )
    return rows_fp8, weight_fp8, row_scales, weight_scales


def factors(size: Product, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """bf16 [M, K] and [N, K]."""
    rows = _random(size.num_rows, size.depth, device=device, seed=2 * seed)
    return rows, _random(size.num_columns, size.depth, device=device, seed=2 * seed + 1)


def _random(*shape: int, device: torch.device, seed: int) -> Tensor:
    """bf16 of a normal distribution."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)


def _by_row(values: Tensor, *, is_weight: bool) -> tuple[Tensor, Tensor]:
    """Scales [M, 1]."""
    return _scaled(values, values.abs().amax(dim=1, keepdim=True).float() / _MAX_FP8)


def _by_tensor(values: Tensor, *, is_weight: bool) -> tuple[Tensor, Tensor]:
    """One scale."""
    return _scaled(values, values.abs().amax().float() / _MAX_FP8)


def _by_block(values: Tensor, *, is_weight: bool) -> tuple[Tensor, Tensor]:
    """Scales of 1 x 128 for rows, of 128 x 128 for a weight, each with the rows lying side by side, as cuBLAS wants."""
    high = _BLOCK if is_weight else 1
    blocks = values.view(values.shape[0] // high, high, values.shape[1] // _BLOCK, _BLOCK)
    scales = blocks.abs().amax(dim=(1, 3)).float() / _MAX_FP8
    spread = scales.repeat_interleave(high, dim=0).repeat_interleave(_BLOCK, dim=1)
    scaled, _ = _scaled(values, spread)
    return scaled, scales if is_weight else scales.T.contiguous().T


def _scaled(values: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    return (values / scales).clamp(-_MAX_FP8, _MAX_FP8).to(torch.float8_e4m3fn), scales


_SCHEMES = {FP8_ROW: _by_row, FP8_TENSOR: _by_tensor, FP8_BLOCK: _by_block}
