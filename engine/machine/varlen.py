"""PyTorch's FlashAttention-2 for packed sequences of varying length, on CUDA. Imports torch only when called.

PyTorch's function for this, torch.nn.attention.varlen.varlen_attn, changes its arguments from version to version, and
each call costs a memory fill and a Python wrapper. So the operator below it is called, which has the same arguments in
every version that is served, torch 2.11 to 2.13.

Shapes: T tokens of all sequences, B sequences, N query heads, H key heads, D numbers a head.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ALIGNMENT = 8  # D must be a multiple of this
_MAX_HEAD_DIM = 256


def has_varlen(head_dim: int, dtype: "torch.dtype", capability: tuple[int, int]) -> bool:
    """Whether `varlen` can be called on a GPU of this compute capability."""
    import torch

    return capability >= (8, 0) and head_dim <= _MAX_HEAD_DIM and dtype in (torch.float16, torch.bfloat16)


def varlen(
    query: "Tensor",  # float16 or bfloat16 [T, N, D], adjacent numbers of a head
    key: "Tensor",  # [T, H, D], N a multiple of H
    value: "Tensor",  # [T, H, D]
    cu_seqlens: "Tensor",  # int32 [B + 1]
    max_seqlen: int,  # no sequence is longer
    *,
    is_causal: bool,
    scaling: float,
    window: int | None = None,  # a token attends to tokens fewer than this many away
) -> "Tensor":
    """Rows [T, N, D]. Those after the last sequence are undefined. Does not synchronise with the host."""
    import torch
    from torch.nn import functional

    head_dim = query.shape[-1]
    padding = -head_dim % _ALIGNMENT
    if padding:
        query, key, value = (functional.pad(part, (0, padding)) for part in (query, key, value))
    before = -1 if window is None else window - 1  # tokens that a token attends to before itself; -1 = all
    after = 0 if is_causal else before
    # For max_seqlen 1 the operator splits heads in another way and takes T for B, but T may be larger.
    max_seqlen = max(2, max_seqlen)
    rows: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        0.0,
        (before, after) == (-1, 0),
        False,
        scale=scaling,
        window_size_left=before,
        window_size_right=after,
    )[0]
    return rows[..., :head_dim]
