"""A product for few rows, x [M, K] by w [N, K] transposed, M up to 64: every program reads a stretch of the weights
once, as fast as memory gives it. A trial, to be compared with cuBLASLt; the engine does not use it.

The weights are the first factor of each step's product, so that their 64 rows fill Hopper's matrix units, and x the
second. Where there are too few rows of weights for all multiprocessors, K is split, and the parts are added up.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 64
_BLOCK_N = 64
_BYTES_A_STEP = 256  # of each row of the weights
_PROGRAMS = 264  # two for each multiprocessor of an H100


def product(x: Tensor, weight: Tensor, x_scales: Tensor | None = None, weight_scales: Tensor | None = None) -> Tensor:
    """bfloat16 [M, N]. In FP8 with scales float32 [M] and [N]. K is a multiple of 256."""
    (num_rows, depth), num_columns = x.shape, len(weight)
    block_k = _BYTES_A_STEP // weight.element_size()
    assert num_rows <= MAX_ROWS
    assert depth % block_k == 0
    num_blocks, num_steps = -(-num_columns // _BLOCK_N), depth // block_k
    num_parts = max(1, min(_PROGRAMS // num_blocks, num_steps))
    parts = torch.empty(num_parts, num_rows, num_columns, dtype=torch.float32, device=x.device)
    _product[(num_blocks, num_parts)](
        x,
        weight,
        parts,
        parts if x_scales is None else x_scales,
        parts if weight_scales is None else weight_scales,
        num_rows,
        num_columns,
        depth,
        -(-num_steps // num_parts),
        HAS_SCALES=x_scales is not None,
        BLOCK_M=max(16, triton.next_power_of_2(num_rows)),
        BLOCK_N=_BLOCK_N,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=4,
    )
    return parts[0].bfloat16() if num_parts == 1 else parts.sum(0).bfloat16()


@triton.jit
def _product(
    x: tl.tensor,
    weight: tl.tensor,
    parts: tl.tensor,
    x_scales: tl.tensor,
    weight_scales: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    depth: tl.tensor,
    num_steps: tl.tensor,
    HAS_SCALES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    part = tl.program_id(1)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = rows < num_rows, columns < num_columns
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for step in range(part * num_steps, min((part + 1) * num_steps, depth // BLOCK_K)):
        inner = step * BLOCK_K + tl.arange(0, BLOCK_K)
        w = tl.load(weight + columns[:, None] * depth + inner[None, :], mask=is_column[:, None], other=0.0)
        of_x = tl.load(x + rows[None, :] * depth + inner[:, None], mask=is_row[None, :], other=0.0)
        total = tl.dot(w, of_x, total)
    if HAS_SCALES:
        total *= tl.load(weight_scales + columns, mask=is_column, other=0.0)[:, None]
        total *= tl.load(x_scales + rows, mask=is_row, other=0.0)[None, :]
    where = (part * num_rows + rows[None, :]) * num_columns + columns[:, None]
    tl.store(parts + where, total, mask=is_column[:, None] & is_row[None, :])
