"""Residual + delta, its norm, and the norm in float8, in one pass: a row stays in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.fused.kernels.launch import block_for, num_warps_for, row_stride
from engine.fused.kernels.quantize import empty_quantized, peak_bits, quantized, scale_of
from engine.fused.model.ops import Norm, NormedRows, NormOutputs


def add_norm(
    delta: Tensor,
    residual: Tensor | None,
    norm: Norm,
    *,
    delta_norm: Norm | None,
    outputs: NormOutputs,
) -> NormedRows:
    """See Ops.

    Bytes a row of h two-byte numbers: 2 h each for delta, residual, the total (if written) and plain rows; h + 4 for
    quantized rows. h is at most 16,384.
    """
    width = delta.shape[1]
    is_sum = residual is not None or delta_norm is not None
    total = _empty_like(delta) if is_sum and NormOutputs.RESIDUAL in outputs else None
    rows = _empty_like(delta) if NormOutputs.ROWS in outputs else None
    quantized_rows = empty_quantized(delta.shape, delta.device) if NormOutputs.QUANTIZED in outputs else None
    block = block_for(width)
    _add_norm[(len(delta),)](
        delta,
        residual,
        delta_norm.weight if delta_norm else None,
        delta_norm.bias if delta_norm else None,
        norm.weight,
        norm.bias,
        total,
        rows,
        quantized_rows.values if quantized_rows else None,
        quantized_rows.scales if quantized_rows else None,
        row_stride(delta),
        0 if residual is None else row_stride(residual),
        delta_norm.eps if delta_norm else 0.0,
        norm.eps,
        WIDTH=width,
        DELTA_IS_RMS=delta_norm is not None and delta_norm.kind == "rms",
        IS_RMS=norm.kind == "rms",
        BLOCK=block,
        num_warps=num_warps_for(block),
    )
    return NormedRows(total if is_sum or NormOutputs.RESIDUAL not in outputs else delta, rows, quantized_rows)


def _empty_like(rows: Tensor) -> Tensor:
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


@triton.jit
def _add_norm(
    delta: tl.tensor,
    residual: tl.tensor,
    delta_weight: tl.tensor,
    delta_bias: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    total: tl.tensor,
    rows: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    delta_stride: tl.tensor,
    residual_stride: tl.tensor,
    delta_eps: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    DELTA_IS_RMS: tl.constexpr,
    IS_RMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    target = row * WIDTH + column

    summed = tl.load(delta + row * delta_stride + column, mask=mask, other=0.0).to(tl.float32)
    if delta_weight is not None:
        summed = _normalised(summed, delta_weight, delta_bias, delta_eps, WIDTH, DELTA_IS_RMS)
    if residual is not None:
        summed += tl.load(residual + row * residual_stride + column, mask=mask, other=0.0).to(tl.float32)
    rounded = summed.to(delta.dtype.element_ty)
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
    row: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    IS_RMS: tl.constexpr,
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
