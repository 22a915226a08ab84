"""The code that kernels of rows share: how wide rows are divided among programs and threads, and rows in float8.

Chosen by hand, so nothing is tuned at start. A program takes one row, or a part of one:

    width of a row      … 512   1024   2048   4096   8192   16384
    warps                   1      2      4      8     16      16
    numbers a thread       16     16     16     16     16      32

Sixteen numbers of two bytes are two 16-byte loads for each tensor that is read: enough in flight to keep memory busy,
few enough registers for many programs on a multiprocessor. Several narrow rows a program would save programs, but
then the norm's weights lie otherwise among the threads than the rows, and moving them costs more barriers than it
saves: with one row of up to 512 numbers, one warp needs none at all.

Float8 has one divisor a row, and a multiplication by its reciprocal a number: within one rounding of float32 from the
division, so only a number that lies on the border between two of float8 can come out as the other. There is no clamp:
the largest magnitude becomes 448 give or take three roundings of float32, and the conversion saturates. Those that
store float8 say that only 8 numbers are adjacent (`tl.max_contiguous`). Left alone, Triton gives each thread 16 of
them, and takes rows of two-byte numbers through shared memory to get there.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.fused.model.ops import MAX_WIDTH, QuantizedRows

MAX_BLOCK = MAX_WIDTH  # numbers that one program can hold
_MAX_COLUMNS = 1024  # of a program that may stop anywhere in a row
_NUMBERS_PER_WARP = 32 * 16
_MAX_WARPS = 16

_MAX_FP8 = tl.constexpr(448.0)  # the largest float8_e4m3fn
_MIN_SCALE = tl.constexpr(2.0**-126)  # the reciprocal of a smaller one is infinite; rows below 5e-36 lose precision


def block_for(width: int) -> int:
    """The block size, a power of two, of a program that holds a whole row."""
    assert width <= MAX_BLOCK, width
    return power_of_two(width)


def columns_for(width: int) -> int:
    """The block size, a power of two, of a program that holds a part of a row, or all of a short one."""
    return min(_MAX_COLUMNS, power_of_two(width))


def num_warps_for(block: int) -> int:
    """The warps of a program with this block size."""
    return min(_MAX_WARPS, max(1, block // _NUMBERS_PER_WARP))


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number` and 16."""
    return max(16, 1 << (number - 1).bit_length())


def row_stride(rows: Tensor) -> int:
    """The distance of rows, in numbers. The numbers of a row must be adjacent."""
    assert rows.stride(-1) == 1, rows.stride()
    return rows.stride(0)


def empty_quantized(shape: Sequence[int], device: torch.device) -> QuantizedRows:
    """Uninitialised quantized rows [T, h]."""
    values = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    return QuantizedRows(values, torch.empty((shape[0], 1), dtype=torch.float32, device=device))


@triton.jit
def magnitude_bits(row: tl.tensor) -> tl.tensor:
    """The bits of magnitudes, int32, of float32 [BLOCK].

    Magnitudes compare like their bits, and NaN is above all of them. A maximum of floats would ignore NaN.
    """
    return row.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def peak_bits(row: tl.tensor) -> tl.tensor:
    """The bits of a row's largest magnitude, int32, of float32 [BLOCK]."""
    return tl.max(magnitude_bits(row), axis=0)


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
