"""Looks up rows in the tables of words, positions and types, and adds them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.fused.kernels.launch import columns_for, num_warps_for, row_stride
from engine.fused.model.ops import EmbeddingTables, Inputs


def embed(inputs: Inputs, tables: EmbeddingTables) -> Tensor:
    """See Ops. Bytes a row of h two-byte numbers: 2 h for each table, 2 h for the sum."""
    num_rows, width = len(inputs.token_ids), tables.words.shape[1]
    rows = torch.empty((num_rows, width), dtype=tables.words.dtype, device=tables.words.device)
    block = columns_for(width)
    _embed[(num_rows, triton.cdiv(width, block))](
        inputs.token_ids,
        inputs.positions,
        inputs.token_type_ids,
        tables.words,
        tables.positions,
        tables.types,
        rows,
        row_stride(tables.words),
        0 if tables.positions is None else row_stride(tables.positions),
        0 if tables.types is None else row_stride(tables.types),
        tables.scale,
        WIDTH=width,
        BLOCK=block,
        num_warps=num_warps_for(block),
    )
    return rows


@triton.jit(do_not_specialize_on_alignment=["token_ids", "token_positions", "token_types"])
def _embed(
    token_ids: tl.tensor,
    token_positions: tl.tensor,
    token_types: tl.tensor,
    words: tl.tensor,
    positions: tl.tensor,
    types: tl.tensor,
    rows: tl.tensor,
    words_stride: tl.tensor,
    positions_stride: tl.tensor,
    types_stride: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    word = words + tl.load(token_ids + row).to(tl.int64) * words_stride
    summed = tl.load(word + column, mask=mask, other=0.0).to(tl.float32) * scale
    if positions is not None:
        position = positions + tl.load(token_positions + row).to(tl.int64) * positions_stride
        summed += tl.load(position + column, mask=mask, other=0.0).to(tl.float32)
    if types is not None:
        if token_types is not None:
            types += tl.load(token_types + row).to(tl.int64) * types_stride
        summed += tl.load(types + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(rows + row * WIDTH + column, summed.to(rows.dtype.element_ty), mask=mask)
