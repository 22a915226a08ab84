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
Whether that, or more keys a step, is faster nobody has measured yet: `variants` are tried when a model is loaded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.fused.kernels.attention_tiles import attend_tiles
from engine.fused.kernels.rows import power_of_two
from engine.fused.model.ops import AttentionRule, Inputs, Tiles

_LINE = 16  # bytes that addresses and strides of descriptors are multiples of
_MAX_OFFSET = 2**31  # offsets within a sequence are counted in 32 bits
_HOPPER = (9, 0)  # sizes for its like are taken where no GPU is
# Keys a step, by queries a tile and D, up to which they hold.
_BLOCK_N = {
    128: {64: 64, 128: 64, 256: 32},
    64: {64: 64, 128: 64, 256: 32},
    32: {64: 64, 128: 32, 256: 32},
    16: {64: 32, 128: 16, 256: 32},
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one launch."""

    block_n: int  # keys a step
    num_warps: int
    num_stages: int  # steps whose keys and values are in shared memory or being loaded
    max_registers: int | None = None  # of a thread; None = no limit
    by_boxes: bool = False  # whole blocks are read by tensor descriptors (TMA), where rows can be


# By D: what may be faster than `sizes_for` on Hopper and data-centre Blackwell, for tiles of 128 queries.
_VARIANTS = {
    64: {
        "tiles by TMA": Sizes(64, 8, 3, 128, by_boxes=True),
        "tiles of 128 keys": Sizes(128, 8, 2),
        "tiles of 128 keys by TMA": Sizes(128, 8, 3, by_boxes=True),
    },
    128: {
        "tiles by TMA": Sizes(64, 8, 3, by_boxes=True),
        "tiles by TMA in 4 stages": Sizes(64, 8, 4, by_boxes=True),
        "tiles of 128 keys": Sizes(128, 8, 2),
    },
    256: {"tiles by TMA": Sizes(32, 8, 3, by_boxes=True)},
}
VARIED_BLOCK = 128


def variants(head_dim: int, capability: tuple[int, int]) -> dict[str, Sizes]:
    """Sizes of `attend` to try, by a name for people, for 16-bit numbers and without relative biases."""
    return _VARIANTS[max(64, power_of_two(head_dim))] if capability[0] in (9, 10) else {}


@dataclass(frozen=True, slots=True)
class VariedAttend:
    """See engine.fused.model.blocks.Attend: with these sizes for large tiles, and those of `sizes_for` for others."""

    sizes: Sizes

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
        sizes = self.sizes if inputs.tiles.block == VARIED_BLOCK else None
        return attend(query, key, value, inputs.tiles, rule, sizes=sizes)


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
    """The sizes for tiles of `block` queries on a GPU of this compute capability.

    They are optimized for 9.0 and 16-bit numbers. Other GPUs get sizes that fit, and float32 is for checks.
    """
    dim = max(64, power_of_two(head_dim))
    block_n, num_warps = _BLOCK_N[block][dim], block // 16
    if dim == 256 and block < 64:
        num_warps *= 2
    if is_float32 or (dim == 256 and not _has_large_shared_memory(capability)):
        return Sizes(16, num_warps, 1)
    has_two = block == 128 and dim == 64 and capability[0] in (9, 10) and not has_bias
    return Sizes(block_n, num_warps, 2 if has_bias else 3, 128 if has_two else None)


def _capability(tensor: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(tensor.device) if tensor.is_cuda else _HOPPER


def _has_large_shared_memory(capability: tuple[int, int]) -> bool:
    """Whether it is at least 163 KB; otherwise it is 99 KB (CUDA programming guide, compute capabilities)."""
    return capability in ((8, 0), (8, 7)) or capability[0] in (9, 10)
