"""Looks up the rows of tokens, and takes means of sequences of any lengths, which the host need not know.

For a mean, each sequence is cut into chunks of up to 64 tokens from its own start, so it does not depend on where the
sequence lies in the batch. A first kernel sums chunks, a second one adds up each sequence's sums. Both add as a tree in
one fixed order, so float32 is good to about a ten-millionth of the mean magnitude.

Where chunks lie: those of sequence b are in slots b + cu_seqlens[b] // 64 and the following. A sequence of n tokens
needs at most n // 64 + 1 slots, and the next one's first slot is at least that much further, so none meet; the number
of slots, B + T // 64, follows from shapes. Slots that no chunk falls into cost one empty program each.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.fused.kernels.rows import columns_for, num_warps_for, row_stride
from engine.fused.model.ops import EmbeddingTables, Inputs

_CHUNK = 64  # tokens
_COLUMNS = 64  # 128 bytes of two-byte numbers: a whole line of the cache
_SEQUENCES = 1024  # looked through at a time
_SUMS = 32  # added at a time


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


def gather(rows: Tensor, places: Tensor) -> Tensor:
    """See Ops. Bytes a token of h two-byte numbers: 4 h, and none where there is only padding: that may be most, since
    few sizes are recorded as graphs."""
    num_tokens, width = len(places), rows.shape[1]
    gathered = torch.empty((num_tokens, width), dtype=rows.dtype, device=rows.device)
    block = columns_for(width)
    _gather[(num_tokens, triton.cdiv(width, block))](
        rows, places, gathered, row_stride(rows), WIDTH=width, BLOCK=block, num_warps=num_warps_for(block)
    )
    return gathered


@triton.jit(do_not_specialize_on_alignment=["places"])
def _gather(
    rows: tl.tensor,
    places: tl.tensor,
    gathered: tl.tensor,
    stride: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token).to(tl.int64)
    if place >= 0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = column < WIDTH
        row = tl.load(rows + place * stride + column, mask=mask)
        tl.store(gathered + token * WIDTH + column, row, mask=mask)


def pool(rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """See Ops. Bytes a row of h two-byte numbers: 2 h, and 8 h / 64 for the sums."""
    num_sequences, (num_rows, width) = len(cu_seqlens) - 1, rows.shape
    num_slots = num_sequences + num_rows // _CHUNK
    num_columns = triton.cdiv(width, _COLUMNS)
    sums = torch.empty((num_slots, width), dtype=torch.float32, device=rows.device)
    means = torch.empty((num_sequences, width), dtype=torch.float32, device=rows.device)
    _sum_chunks[(num_slots, num_columns)](
        rows,
        cu_seqlens,
        sums,
        num_sequences,
        row_stride(rows),
        WIDTH=width,
        CHUNK=_CHUNK,
        COLUMNS=_COLUMNS,
        SEQUENCES=_SEQUENCES,
        SEARCHES=triton.cdiv(num_sequences, _SEQUENCES),
        num_warps=4,
    )
    _mean_of_sums[(num_sequences, num_columns)](
        sums, cu_seqlens, means, WIDTH=width, CHUNK=_CHUNK, COLUMNS=_COLUMNS, SUMS=_SUMS, num_warps=4
    )
    return means


@triton.jit(do_not_specialize=["num_sequences"], do_not_specialize_on_alignment=["cu_seqlens"])
def _sum_chunks(
    rows: tl.tensor,
    cu_seqlens: tl.tensor,
    sums: tl.tensor,
    num_sequences: tl.tensor,
    stride: tl.tensor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    SEQUENCES: tl.constexpr,
    SEARCHES: tl.constexpr,
) -> None:
    slot = tl.program_id(0)
    num_before = 0  # sequences whose first slot is this one or an earlier one
    for search in range(SEARCHES):
        candidate = search * SEQUENCES + tl.arange(0, SEQUENCES)
        start = tl.load(cu_seqlens + candidate, mask=candidate < num_sequences, other=0)
        is_before = (candidate < num_sequences) & (candidate + start // CHUNK <= slot)
        num_before += tl.sum(is_before.to(tl.int32), axis=0)
    sequence = num_before - 1
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    first_row = start + (slot - sequence - start // CHUNK) * CHUNK
    if first_row < end:
        row = first_row.to(tl.int64) + tl.arange(0, CHUNK)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        mask = (row < end)[:, None] & (column < WIDTH)[None, :]
        values = tl.load(rows + row[:, None] * stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(sums + slot.to(tl.int64) * WIDTH + column, tl.sum(values, axis=0), mask=column < WIDTH)


@triton.jit(do_not_specialize_on_alignment=["cu_seqlens"])
def _mean_of_sums(
    sums: tl.tensor,
    cu_seqlens: tl.tensor,
    means: tl.tensor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
) -> None:
    sequence = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    num_sums = tl.cdiv(length, CHUNK)
    source = sums + (sequence + start // CHUNK).to(tl.int64) * WIDTH + column[None, :]
    total = tl.zeros((SUMS, COLUMNS), tl.float32)
    first = 0
    while first < num_sums:  # the interpreter takes no range up to a tensor
        number = first + tl.arange(0, SUMS)
        mask = (number < num_sums)[:, None] & (column < WIDTH)[None, :]
        total += tl.load(source + number[:, None] * WIDTH, mask=mask, other=0.0)
        first += SUMS
    mean = tl.sum(total, axis=0) / tl.maximum(length, 1)
    tl.store(means + sequence.to(tl.int64) * WIDTH + column, mean, mask=column < WIDTH)
