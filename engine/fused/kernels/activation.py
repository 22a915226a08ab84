"""The MLP's activation, times its gate, plain or in float8. Without an activation it quantizes any rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.fused.kernels.rows import (
    MAX_BLOCK,
    block_for,
    columns_for,
    empty_quantized,
    magnitude_bits,
    num_warps_for,
    peak_bits,
    quantized,
    row_stride,
    scale_of,
)
from engine.fused.model.ops import QuantizedRows, Rows

_CHUNK = 4096  # numbers at a time, of rows that no program can hold
_PARTS = (4096, 2048, 1024)  # numbers, of rows that are held in several blocks
_MAX_PARTS = 3  # more of them spill registers on Blackwell


def activate(rows: Tensor, activation: str, *, is_gated: bool, is_quantized: bool) -> Rows:
    """See Ops. Bytes a row of I two-byte numbers: 2 I to read, 4 I if gated; 2 I to write, I + 4 if quantized.

    Rows of more than 16,384 numbers are quantized in two passes; the second reads from the cache.
    """
    if is_quantized:
        return _quantize_activated(rows, activation, is_gated=is_gated)
    num_rows, width = len(rows), rows.shape[1] // (2 if is_gated else 1)
    activated = torch.empty((num_rows, width), dtype=rows.dtype, device=rows.device)
    block = columns_for(width)
    _activate[(num_rows, triton.cdiv(width, block))](
        rows,
        activated,
        row_stride(rows),
        WIDTH=width,
        ACTIVATION=activation,
        IS_GATED=is_gated,
        BLOCK=block,
        num_warps=num_warps_for(block),
    )
    return activated


def quantize(rows: Tensor) -> QuantizedRows:
    """See Ops. Bytes a row of h two-byte numbers: 3 h + 4."""
    return _quantize_activated(rows, "none", is_gated=False)


def _quantize_activated(rows: Tensor, activation: str, *, is_gated: bool) -> QuantizedRows:
    num_rows, width = len(rows), rows.shape[1] // (2 if is_gated else 1)
    quantized_rows = empty_quantized((num_rows, width), rows.device)
    tensors = rows, quantized_rows.values, quantized_rows.scales, row_stride(rows)
    kind = {"WIDTH": width, "ACTIVATION": activation, "IS_GATED": is_gated}
    if width > MAX_BLOCK:
        _activate_in_chunks[(num_rows,)](*tensors, **kind, BLOCK=_CHUNK, num_warps=num_warps_for(_CHUNK))
        return quantized_rows
    block, num_parts = parts_for(width)
    num_warps = num_warps_for(block if num_parts == 1 else 2 * block)
    _activate_whole[(num_rows,)](*tensors, **kind, BLOCK=block, PARTS=num_parts, num_warps=num_warps)
    return quantized_rows


def parts_for(width: int) -> tuple[int, int]:
    """The size of a block, a power of two, and how many of them hold a row: as few numbers too many as can be, and of
    those the fewest blocks. One block for 12,288 numbers would be 16,384, and a quarter of it idle.
    """
    options = [(block, -(-width // block)) for block in (block_for(width), *_PARTS)]
    return min((one for one in options if one[1] <= _MAX_PARTS), key=lambda one: (one[0] * one[1], one[1]))


@triton.jit
def _activate(
    rows: tl.tensor,
    activated: tl.tensor,
    stride: tl.tensor,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = _activated(rows + row * stride, column, WIDTH, ACTIVATION, IS_GATED)
    tl.store(activated + row * WIDTH + column, values.to(activated.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def _activate_whole(
    rows: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    stride: tl.tensor,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    bits = tl.zeros([BLOCK], tl.int32)
    parts = ()
    for part in tl.static_range(PARTS):
        activated = _activated(rows + row * stride, part * BLOCK + column, WIDTH, ACTIVATION, IS_GATED)
        bits = tl.maximum(bits, magnitude_bits(activated))
        parts = parts + (activated,)  # type: ignore[assignment]  # noqa: RUF005, as Triton knows it
    scale = scale_of(tl.max(bits, axis=0))
    target = values + tl.max_contiguous(row * WIDTH + column, 8)
    for part in tl.static_range(PARTS):
        mask = part * BLOCK + column < WIDTH
        tl.store(target + part * BLOCK, quantized(parts[part], scale), mask=mask)
    tl.store(scales + row, scale)


@triton.jit
def _activate_in_chunks(
    rows: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    stride: tl.tensor,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    bits = 0
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        bits = tl.maximum(bits, peak_bits(_activated(rows + row * stride, column, WIDTH, ACTIVATION, IS_GATED)))
    scale = scale_of(bits)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        activated = _activated(rows + row * stride, column, WIDTH, ACTIVATION, IS_GATED)
        tl.store(values + tl.max_contiguous(row * WIDTH + column, 8), quantized(activated, scale), mask=column < WIDTH)
    tl.store(scales + row, scale)


@triton.jit
def _activated(
    row: tl.tensor, column: tl.tensor, WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, IS_GATED: tl.constexpr
) -> tl.tensor:
    """float32 [BLOCK] of the row that starts at the pointer `row`; 0 after WIDTH."""
    mask = column < WIDTH
    x = tl.load(row + column, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        x = x * _sigmoid(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # 1 / sqrt(2)
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(y)) / 2 = sigmoid(2 y); 2 sqrt(2 / pi)
        x = x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)  # a maximum would lose NaN
    else:
        tl.static_assert(ACTIVATION == "none")
    if IS_GATED:
        x *= tl.load(row + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    return x


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-x)), without overflow."""
    power = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, power) / (1.0 + power)
