"""A product for few rows, x [M, K] by w [N, K] transposed, M up to 64: every program reads a stretch of the weights
once, as fast as memory gives it. A trial, to be compared with cuBLASLt; the engine does not use it.

The weights are the first factor of each step's product, so that their rows fill Hopper's matrix units, and x the
second. Where there are too few rows of weights for all multiprocessors, K is split. The program that ends last adds up
the parts of its columns, always in the same order, so it is one kernel. (Of three, with a sum and a conversion behind
it, `down` of 8B took 27 us on an H100, and cuBLASLt's 33.)
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 64
_MULTIPROCESSORS = 132  # of an H100


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a launch."""

    columns: int = 64  # rows of the weights a program
    num_bytes: int = 256  # of each of them a step
    programs: int = 2  # a multiprocessor, where K can be split so far
    stages: int = 4

    def __str__(self) -> str:
        return f"{self.columns}, {self.num_bytes} B, {self.programs}, {self.stages} stages"


SIZES = (Sizes(), Sizes(stages=6), Sizes(num_bytes=128, stages=8), Sizes(columns=128, programs=1), Sizes(programs=4))
_counters: dict[torch.device, Tensor] = {}  # int32, one for each block of columns; each launch leaves zeros


def product(
    x: Tensor,
    weight: Tensor,
    x_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
    *,
    sizes: Sizes = SIZES[0],
) -> Tensor:
    """bfloat16 [M, N]. In FP8 with scales float32 [M] and [N]. K is a multiple of 256. One at a time on a device."""
    (num_rows, depth), num_columns = x.shape, len(weight)
    block_k = sizes.num_bytes // weight.element_size()
    assert num_rows <= MAX_ROWS
    assert depth % block_k == 0
    num_blocks, num_steps = -(-num_columns // sizes.columns), depth // block_k
    num_parts = max(1, min(sizes.programs * _MULTIPROCESSORS // num_blocks, num_steps))
    num_steps = -(-num_steps // num_parts)
    num_parts = -(-depth // (block_k * num_steps))  # none without a step
    output = torch.empty(num_rows, num_columns, dtype=torch.bfloat16, device=x.device)
    parts = torch.empty(num_parts, num_rows, num_columns, dtype=torch.float32, device=x.device)
    counters = _counters.setdefault(x.device, torch.zeros(4096, dtype=torch.int32, device=x.device))
    assert num_blocks <= len(counters)
    _product[(num_blocks, num_parts)](
        x,
        weight,
        output,
        parts,
        counters,
        parts if x_scales is None else x_scales,
        parts if weight_scales is None else weight_scales,
        num_rows,
        num_columns,
        depth,
        num_steps,
        PARTS=num_parts,
        HAS_SCALES=x_scales is not None,
        BLOCK_M=max(16, triton.next_power_of_2(num_rows)),
        BLOCK_N=sizes.columns,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=sizes.stages,
    )
    return output


@triton.jit
def _product(
    x: tl.tensor,
    weight: tl.tensor,
    output: tl.tensor,
    parts: tl.tensor,
    counters: tl.tensor,
    x_scales: tl.tensor,
    weight_scales: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    depth: tl.tensor,
    num_steps: tl.tensor,
    PARTS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    part = tl.program_id(1)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = rows < num_rows, columns < num_columns
    is_inside = is_column[:, None] & is_row[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for step in range(part * num_steps, min((part + 1) * num_steps, depth // BLOCK_K)):
        inner = step * BLOCK_K + tl.arange(0, BLOCK_K)
        w = tl.load(weight + columns[:, None] * depth + inner[None, :], mask=is_column[:, None], other=0.0)
        of_x = tl.load(x + rows[None, :] * depth + inner[:, None], mask=is_row[None, :], other=0.0)
        total = tl.dot(w, of_x, total)
    where = rows[None, :] * num_columns + columns[:, None]
    num_ended = PARTS - 1
    if PARTS > 1:
        tl.store(parts + part * num_rows * num_columns + where, total, mask=is_inside)
        tl.debug_barrier()  # all of this program's numbers are stored before it counts
        num_ended = tl.atomic_add(counters + tl.program_id(0), 1, sem="acq_rel")
    if num_ended == PARTS - 1:
        if PARTS > 1:
            total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
            for one in range(PARTS):
                total += tl.load(
                    parts + one * num_rows * num_columns + where, mask=is_inside, other=0.0, cache_modifier=".cg"
                )
            tl.store(counters + tl.program_id(0), 0)
        if HAS_SCALES:
            total *= tl.load(weight_scales + columns, mask=is_column, other=0.0)[:, None]
            total *= tl.load(x_scales + rows, mask=is_row, other=0.0)[None, :]
        tl.store(output + where, total.to(tl.bfloat16), mask=is_inside)
