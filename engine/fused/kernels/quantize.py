"""Quantizes rows to float8 with one scale each, inside other kernels. Launches nothing itself.

One divisor a row, and a multiplication by its reciprocal a number: within one rounding of float32 from the division,
so only a number that lies on the border between two of float8 can come out as the other. There is no clamp: the
largest magnitude becomes 448 give or take three roundings of float32, and the conversion saturates.

Those that store float8 say that only 8 numbers are adjacent (`tl.max_contiguous`). Left alone, Triton gives each thread
16 of them, and takes rows of two-byte numbers through shared memory to get there.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from engine.fused.model.ops import QuantizedRows

_MAX_FP8 = tl.constexpr(448.0)  # the largest float8_e4m3fn
_MIN_SCALE = tl.constexpr(2.0**-126)  # the reciprocal of a smaller one is infinite; rows below 5e-36 lose precision


def empty_quantized(shape: Sequence[int], device: torch.device) -> QuantizedRows:
    """Uninitialised quantized rows [T, h]."""
    values = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    return QuantizedRows(values, torch.empty((shape[0], 1), dtype=torch.float32, device=device))


@triton.jit
def peak_bits(row: tl.tensor) -> tl.tensor:
    """The bits of a row's largest magnitude, int32, of float32 [BLOCK].

    Magnitudes compare like their bits, and NaN is above all of them. A maximum of floats would ignore NaN.
    """
    return tl.max(row.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0)


@triton.jit
def scale_of(bits: tl.tensor) -> tl.tensor:
    """The scale of a row, float32, from its `peak_bits`."""
    peak = bits.to(tl.float32, bitcast=True)
    scale = peak / _MAX_FP8
    return tl.where(peak == 0.0, 1.0, tl.where(scale < _MIN_SCALE, _MIN_SCALE, scale))


@triton.jit
def quantized(row: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """A row in float8 [BLOCK], from float32."""
    return (row * (1.0 / scale)).to(tl.float8e4nv)
