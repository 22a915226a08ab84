"""Residual + hidden, its norm, and the norm in float8, in one pass: a row stays in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.fused.kernels.rows import (
    block_for,
    empty_quantized,
    num_warps_for,
    peak_bits,
    quantized,
    row_stride,
    scale_of,
)
from engine.fused.model.ops import Norm, NormedRows, NormOutputs


def add_norm(
    hidden: Tensor,
    residual: Tensor | None,
    norm: Norm,
    *,
    hidden_norm: Norm | None = None,
    outputs: NormOutputs = NormOutputs.RESIDUAL | NormOutputs.ROWS,
) -> NormedRows:
    """See Ops.

    Bytes a row of h two-byte numbers: 2 h each for hidden, residual, the total (if written) and plain rows; h + 4 for
    quantized rows. h is at most 16,384.
    """
    width = hidden.shape[1]
    is_sum = residual is not None or hidden_norm is not None
    total = _empty_like(hidden) if is_sum and NormOutputs.RESIDUAL in outputs else None
    rows = _empty_like(hidden) if NormOutputs.ROWS in outputs else None
    quantized_rows = empty_quantized(hidden.shape, hidden.device) if NormOutputs.QUANTIZED in outputs else None
    block = block_for(width)
    _add_norm[(len(hidden),)](
        hidden,
        residual,
        hidden_norm.weight if hidden_norm else None,
        hidden_norm.bias if hidden_norm else None,
        norm.weight,
        norm.bias,
        total,
        rows,
        quantized_rows.values if quantized_rows else None,
        quantized_rows.scales if quantized_rows else None,
        row_stride(hidden),
        0 if residual is None else row_stride(residual),
        hidden_norm.eps if hidden_norm else 0.0,
        norm.eps,
        WIDTH=width,
        HIDDEN_IS_RMS=hidden_norm is not None and hidden_norm.kind == "rms",
        IS_RMS=norm.kind == "rms",
        BLOCK=block,
        num_warps=num_warps_for(block),
    )
    return NormedRows(total if is_sum or NormOutputs.RESIDUAL not in outputs else hidden, rows, quantized_rows)


def _empty_like(rows: Tensor) -> Tensor:
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


@triton.jit
def _add_norm(
    hidden: tl.tensor,
    residual: tl.tensor,
    hidden_weight: tl.tensor,
    hidden_bias: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    total: tl.tensor,
    rows: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    hidden_stride: tl.tensor,
    residual_stride: tl.tensor,
    hidden_eps: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    HIDDEN_IS_RMS: tl.constexpr,
    IS_RMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    target = row * WIDTH + column

    summed = tl.load(hidden + row * hidden_stride + column, mask=mask, other=0.0).to(tl.float32)
    if hidden_weight is not None:
        summed = _normalised(summed, hidden_weight, hidden_bias, hidden_eps, WIDTH, HIDDEN_IS_RMS)
    if residual is not None:
        summed += tl.load(residual + row * residual_stride + column, mask=mask, other=0.0).to(tl.float32)
    rounded = summed.to(hidden.dtype.element_ty)
    if total is not None:
        tl.store(total + target, rounded, mask=mask)

    normed = _normalised(rounded.to(tl.float32), weight, bias, eps, WIDTH, IS_RMS)
    if rows is not None:
        tl.store(rows + target, normed.to(rows.dtype.element_ty), mask=mask)
    if values is not None:
        scale = scale_of(peak_bits(normed))
        tl.store(values + tl.max_contiguous(row * WIDTH + column, 8), quantized(normed, scale), mask=mask)
        tl.store(scales + row, scale)


@triton.jit
def _normalised(
    row: tl.tensor, weight: tl.tensor, bias: tl.tensor, eps: tl.tensor, WIDTH: tl.constexpr, IS_RMS: tl.constexpr
) -> tl.tensor:
    """The norm of a row, float32 [BLOCK]; both are 0 after WIDTH."""
    column = tl.arange(0, row.shape[0])
    mask = column < WIDTH
    if not IS_RMS:
        row = tl.where(mask, row - tl.sum(row, axis=0) / WIDTH, 0.0)
    normed = row * tl.rsqrt(tl.sum(row * row, axis=0) / WIDTH + eps)
    normed *= tl.load(weight + column, mask=mask, other=0.0)
    if bias is not None:
        normed += tl.load(bias + column, mask=mask, other=0.0)
    return normed
