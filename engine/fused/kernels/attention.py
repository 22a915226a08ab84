"""Ops.attend on a GPU: the kernel for packed sequences, one program for each tile of queries and each head, and the
sizes of its launch. Knows no batches.

Sizes are chosen by hand, so nothing is tuned at start. What decides on Hopper (65,536 registers and 227 KB of shared
memory a multiprocessor), with registers and spills as ptxas reports them for sm_90:

- Tiles of 128 and 64 queries take a group of four warps for each 64, the least that wgmma does at once. One group for
  128 would hold twice the sums a thread: at D = 128 it spills.
- Up to D = 64, powers cost as much time as products. Two programs a multiprocessor let one compute powers while the
  other multiplies, which takes at most 128 registers a thread; the compiler gets this limit, and can keep it.
- At D = 128 one program of 128 queries fits, at 190 to 230 registers. 64 keys a step leave room for three stages;
  PyTorch's FlexAttention has found the same sizes best on H100. 128 keys take all registers there are.
- At D = 256, 32 keys: the sums alone are 128 registers a thread.
- Tiles of 32 and 16 queries are for short sequences and single queries: they are bound by memory and by the time to
  start, so many small programs a multiprocessor are better than few large ones. One warp multiplies 16 queries.
- Three stages keep the copies of two steps under way (cp.async); what a relative bias looks up takes room of its own.

Copies go through plain pointers. Tensor descriptors (the bulk copy engine) read whole boxes, also keys behind a
sequence's end where zeros are needed. So they can take the place of pointers for blocks that every query sees whole.
On the first H100 all sizes were reasoned, and the kernel was measured in them alone (docs/performance.md). Whether
other sizes are faster is what the part `attention` of benchmarks.gpu measures; its report writes lines of `SIZES`.

The keys of a tile are a range of its sequence, cut into blocks of two kinds. Most blocks are seen whole by every query.
Those at the edges (the diagonal, the ends of the window and of the sequence) need a mask. Each kind has its own loop:
the long loop consists only of loads, two products and a softmax.

The softmax goes along with the blocks (Milakov and Gimelshein 2018; Dao 2023, FlashAttention-2): the largest score, the
sum and the weighted values so far. Powers are of two, which is what the hardware has, and scores are scaled in the same
multiplication and subtraction that takes the largest off them.

Keys and values behind the sequence's end may be NaN, and 0 * NaN is NaN, so they are loaded as zeros. A masked score is
a large negative number rather than -inf: a row whose first block is all masked then counts what is finite and vanishes
(is multiplied by 2 ** -huge) with the first key that it does see. There is one: a query sees itself, or where the keys
end before it (see `Tiles`), the last of them.

Shapes: M queries a tile, N keys a block, D numbers a head, rounded up to a power of two.
"""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.fused.kernels.rows import power_of_two
from engine.fused.model.ops import TILE_FIELDS, AttentionRule, Tiles

_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_FIELDS: tl.constexpr = tl.constexpr(TILE_FIELDS)
_MASKED: tl.constexpr = tl.constexpr(-(2.0**100))  # a power of two, so scaling is exact and it cancels to 0
_LINE = 16  # bytes that addresses and strides of descriptors are multiples of
_MAX_OFFSET = 2**31  # offsets within a sequence are counted in 32 bits
_HOPPER = (9, 0)  # sizes for its like are taken where no GPU is


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one launch."""

    block_n: int  # keys a step
    num_warps: int
    num_stages: int  # steps whose keys and values are in shared memory or being loaded
    max_registers: int | None = None  # of a thread; None = no limit
    by_boxes: bool = False  # whole blocks are read by tensor descriptors (TMA), where rows can be


_BY_HAND = {
    64: {16: Sizes(32, 1, 3), 32: Sizes(64, 2, 3), 64: Sizes(64, 4, 3), 128: Sizes(64, 8, 3, 128)},
    128: {16: Sizes(16, 1, 3), 32: Sizes(32, 2, 3), 64: Sizes(64, 4, 3), 128: Sizes(64, 8, 3)},
    256: {16: Sizes(32, 2, 3), 32: Sizes(32, 4, 3), 64: Sizes(32, 4, 2), 128: Sizes(32, 8, 3)},
}

# Sizes by the first number of the compute capability, D rounded up, and queries a tile; for 16-bit numbers.
SIZES = {9: _BY_HAND, 10: _BY_HAND}


def attend(
    query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, rule: AttentionRule, *, sizes: Sizes | None = None
) -> Tensor:
    """See Ops, for tensors on the current GPU; D is at most 256. sizes: None = chosen here."""
    num_heads, head_dim = query.shape[1:]
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    bias = rule.relative_bias
    assert query.stride(2) == key.stride(2) == value.stride(2) == 1
    assert rule.scaling > 0
    assert len(key) * max(key.stride(0), value.stride(0)) < _MAX_OFFSET
    sizes = sizes or sizes_for(
        head_dim, tiles.block, _capability(query), has_bias=bias is not None, is_float32=query.dtype == torch.float32
    )
    if not len(tiles.table):
        return output
    attend_tiles[(len(tiles.table), num_heads)](
        query,
        key,
        value,
        output,
        tiles.table,
        output if bias is None else bias,
        _boxes(key, sizes),
        _boxes(value, sizes),
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *output.stride()[:2],
        rule.scaling,
        rule.softcap or 1.0,
        rule.window or 0,
        0 if bias is None else bias.shape[1] // 2,
        GROUPS=num_heads // key.shape[1],
        HEAD_DIM=head_dim,
        IS_CAUSAL=rule.is_causal,
        HAS_WINDOW=rule.window is not None,
        HAS_SOFTCAP=rule.softcap is not None,
        HAS_BIAS=bias is not None,
        BLOCK_M=tiles.block,
        BLOCK_N=sizes.block_n,
        BLOCK_D=power_of_two(head_dim),
        num_warps=sizes.num_warps,
        num_stages=sizes.num_stages,
        maxnreg=sizes.max_registers,
    )
    return output


def _boxes(rows: Tensor, sizes: Sizes) -> TensorDescriptor | None:
    """Boxes of keys or values [T, H, D]. Boxes take adjacent heads, whole lines of the cache, and D a power of two."""
    num_rows, num_heads, head_dim = rows.shape
    can = rows.stride(1) == head_dim == power_of_two(head_dim) and rows.stride(0) * rows.itemsize % _LINE == 0
    if not sizes.by_boxes or not can or rows.data_ptr() % _LINE:
        return None
    return TensorDescriptor(rows, [num_rows, num_heads * head_dim], [rows.stride(0), 1], [sizes.block_n, head_dim])


def sizes_for(
    head_dim: int, block: int, capability: tuple[int, int], *, has_bias: bool, is_float32: bool = False
) -> Sizes:
    """The sizes for tiles of `block` queries on a GPU of this compute capability: those of `SIZES`, as far as they fit.

    Other GPUs have less shared memory or no use for a limit of registers, float32 is for checks, and what a relative
    bias looks up takes registers and shared memory.
    """
    dim = max(64, power_of_two(head_dim))
    sizes = SIZES.get(capability[0], _BY_HAND)[dim][block]
    if is_float32 or (dim == 256 and not _has_large_shared_memory(capability)):
        return Sizes(16, sizes.num_warps, 1)
    if has_bias:
        return replace(sizes, num_stages=2, max_registers=None, by_boxes=False)
    return sizes if capability[0] in SIZES else replace(sizes, max_registers=None)


def _capability(tensor: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(tensor.device) if tensor.is_cuda else _HOPPER


def _has_large_shared_memory(capability: tuple[int, int]) -> bool:
    """Whether it is at least 163 KB; otherwise it is 99 KB (CUDA programming guide, compute capabilities)."""
    return capability in ((8, 0), (8, 7)) or capability[0] in (9, 10)


@triton.jit(do_not_specialize=["window", "reach"])
def attend_tiles(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    output: tl.tensor,
    table: tl.tensor,  # int32 [tiles, TILE_FIELDS], see engine.fused.model.ops.Tiles
    bias: tl.tensor,  # float32 [heads, 2 reach + 1]; not read without HAS_BIAS
    key_boxes: tl.tensor,  # descriptor of [rows, H D] in boxes of [BLOCK_N, D]; None = whole blocks go by pointers too
    value_boxes: tl.tensor,  # likewise
    query_row: tl.tensor,  # strides in numbers
    query_head: tl.tensor,
    key_row: tl.tensor,
    key_head: tl.tensor,
    value_row: tl.tensor,
    value_head: tl.tensor,
    output_row: tl.tensor,
    output_head: tl.tensor,
    scaling: tl.tensor,
    softcap: tl.tensor,
    window: tl.tensor,
    reach: tl.tensor,
    GROUPS: tl.constexpr,  # query heads a key head
    HEAD_DIM: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Grid: (tiles, query heads)."""
    tile = table + tl.program_id(0) * _FIELDS
    head = tl.program_id(1)
    num_queries = tl.load(tile + 1)
    if num_queries == 0:
        return
    first_query = tl.load(tile).to(tl.int64)
    position = tl.load(tile + 2)
    first_key = tl.load(tile + 3).to(tl.int64)
    num_keys = tl.load(tile + 4)

    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    numbers = tl.arange(0, BLOCK_D)
    IS_PADDED: tl.constexpr = BLOCK_D != HEAD_DIM
    is_number = numbers < HEAD_DIM
    is_query = rows[:, None] < num_queries
    if IS_PADDED:
        is_query = is_query & is_number[None, :]
    query += first_query * query_row + head * query_head
    q = tl.load(query + rows[:, None] * query_row + numbers[None, :], mask=is_query, other=0.0)
    key += first_key * key_row + (head // GROUPS) * key_head
    value += first_key * value_row + (head // GROUPS) * value_head
    key_pointers = key + columns[None, :] * key_row + numbers[:, None]
    value_pointers = value + columns[:, None] * value_row + numbers[None, :]

    # Keys seen by any query are start … end - 1, those seen by all of them whole_start … whole_end - 1.
    last = position + num_queries - 1
    start, whole_start, end, whole_end = 0, 0, num_keys, num_keys
    if IS_CAUSAL:
        end = tl.minimum(num_keys, last + 1)  # keys may end before the queries do
        whole_end = tl.minimum(num_keys, position + 1)
    if HAS_WINDOW:
        start = tl.maximum(position - window + 1, 0) // BLOCK_N * BLOCK_N
        whole_start = tl.cdiv(tl.maximum(last - window + 1, 0), BLOCK_N) * BLOCK_N
        whole_start = tl.minimum(whole_start, tl.cdiv(end, BLOCK_N) * BLOCK_N)
        if not IS_CAUSAL:
            end = tl.minimum(end, last + window)
            whole_end = tl.minimum(whole_end, position + window)
    whole_end = tl.maximum(whole_end // BLOCK_N * BLOCK_N, whole_start)

    scale = scaling * _LOG2_E
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if HAS_BIAS:
        bias += head * (2 * reach + 1)
    first_row, first_column = first_key.to(tl.int32), head // GROUPS * HEAD_DIM
    for IS_EDGE in tl.static_range(2):
        # The edges in one loop: those below the whole blocks are counted as if they lay right below those above.
        low = whole_end - (whole_start - start) if IS_EDGE else whole_start
        high = end if IS_EDGE else whole_end
        for block in tl.range(low, high, BLOCK_N):
            if IS_EDGE and HAS_WINDOW:
                block += tl.where(block < whole_end, whole_start - whole_end, 0)
            is_key = block + columns < num_keys
            if key_boxes is None or IS_EDGE:
                k = _load(key_pointers + block * key_row, is_key[None, :], is_number[:, None], IS_EDGE, IS_PADDED)
            else:
                k = key_boxes.load([first_row + block, first_column]).T
            scores = tl.dot(q, k, input_precision="ieee")
            if HAS_SOFTCAP:
                # softcap * tanh(x / softcap), in powers of two: tanh(y) = 1 - 2 / (1 + e ** 2y)
                power = tl.exp2(scores * (2.0 * scale / softcap))
                scores = softcap * _LOG2_E * (1.0 - 2.0 / (1.0 + power))
            distance = (block + columns)[None, :] - (position + rows)[:, None]
            if HAS_BIAS:
                if not HAS_SOFTCAP:
                    scores *= scale
                place = tl.minimum(tl.maximum(distance, -reach), reach) + reach
                scores += tl.load(bias + place) * _LOG2_E
            if IS_EDGE:
                is_visible = is_key[None, :]
                if IS_CAUSAL:
                    is_visible = is_visible & (distance <= 0)
                if HAS_WINDOW:
                    is_visible = is_visible & (distance < window) & (distance > -window)
                scores = tl.where(is_visible, scores, _MASKED)
            if HAS_SOFTCAP or HAS_BIAS:
                new_largest = tl.maximum(largest, tl.max(scores, 1))
                weights = tl.exp2(scores - new_largest[:, None])
            else:
                new_largest = tl.maximum(largest, tl.max(scores, 1) * scale)
                weights = tl.exp2(scores * scale - new_largest[:, None])
            kept = tl.exp2(largest - new_largest)
            total = total * kept + tl.sum(weights, 1)
            if value_boxes is None or IS_EDGE:
                v = _load(value_pointers + block * value_row, is_key[:, None], is_number[None, :], IS_EDGE, IS_PADDED)
            else:
                v = value_boxes.load([first_row + block, first_column])
            weighted = tl.dot(weights.to(v.dtype), v, weighted * kept[:, None], input_precision="ieee")
            largest = new_largest
    output += first_query * output_row + head * output_head
    pointers = output + rows[:, None] * output_row + numbers[None, :]
    tl.store(pointers, (weighted / total[:, None]).to(output.dtype.element_ty), mask=is_query)


@triton.jit
def _load(
    pointers: tl.tensor, is_key: tl.tensor, is_number: tl.tensor, IS_MASKED: tl.constexpr, IS_PADDED: tl.constexpr
) -> tl.tensor:
    """A block of keys or values, with zeros after the sequence (if masked) and after the head (if padded)."""
    if IS_MASKED and IS_PADDED:
        loaded = tl.load(pointers, mask=is_key & is_number, other=0.0)
    elif IS_MASKED:
        loaded = tl.load(pointers, mask=is_key, other=0.0)
    elif IS_PADDED:
        loaded = tl.load(pointers, mask=is_number, other=0.0)
    else:
        loaded = tl.load(pointers)
    return loaded
