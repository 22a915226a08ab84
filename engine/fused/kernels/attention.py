"""Ops.attend on a GPU: sizes and launch of the kernel in attention_tiles. Knows no batches.

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
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.fused.kernels.attention_tiles import attend_tiles
from engine.fused.kernels.rows import power_of_two
from engine.fused.model.ops import AttentionRule, Tiles

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
# By the first number of the compute capability, D rounded up, and queries a tile; for 16-bit numbers.
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
    """Of keys or values [T, H, D]. Boxes take adjacent heads, whole lines of the cache, and D a power of two."""
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
