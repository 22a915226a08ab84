"""PyTorch's FlashAttention-2 for packed sequences of varying length, on CUDA. Imports torch only when called.

PyTorch's function for this, torch.nn.attention.varlen.varlen_attn, changes its arguments from version to version, and
each call costs a memory fill and a Python wrapper. So the operator below it is called if its arguments are those of
torch 2.11 and 2.13, and the function otherwise.

Shapes: T tokens of all sequences, B sequences, N query heads, H key heads, D numbers a head.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ALIGNMENT = 8  # D must be a multiple of this
_MAX_HEAD_DIM = 256
_POSITIONAL = "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask"
_BY_NAME = ("scale", "window_size_left", "window_size_right")

_Attention = Callable[["Tensor", "Tensor", "Tensor", "_Case"], "Tensor"]


@dataclass(frozen=True, slots=True)
class _Case:
    """The arguments of both calls besides queries, keys and values."""

    cu_seqlens: "Tensor"
    max_seqlen: int
    scaling: float
    window: tuple[int, int]  # tokens that a token attends to before and after itself; -1 = all


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
    from torch.nn import functional

    head_dim = query.shape[-1]
    padding = -head_dim % _ALIGNMENT
    if padding:
        query, key, value = (functional.pad(part, (0, padding)) for part in (query, key, value))
    before = -1 if window is None else window - 1
    # For max_seqlen 1 the operator splits heads in another way and takes T for B, but T may be larger.
    case = _Case(cu_seqlens, max(2, max_seqlen), scaling, (before, 0 if is_causal else before))
    return _attention()(query, key, value, case)[..., :head_dim]


@functools.cache
def _attention() -> _Attention:
    """The operator, or the function if the operator has changed."""
    import torch

    schema = torch.ops.aten._flash_attention_forward.default._schema
    return by_operator if takes_known(schema.arguments) else by_function


def takes_known(arguments: Sequence[Any]) -> bool:
    """Whether the operator's arguments are those that `by_operator` passes, and all others have defaults."""
    by_position = " ".join(argument.name for argument in arguments if not argument.kwarg_only)
    by_name = {argument.name for argument in arguments if argument.kwarg_only}
    needed = [argument for argument in arguments if argument.kwarg_only and not argument.has_default_value()]
    return by_position == _POSITIONAL and by_name.issuperset(_BY_NAME) and not needed


def by_operator(query: "Tensor", key: "Tensor", value: "Tensor", case: _Case) -> "Tensor":
    """Rows [T, N, D], see `varlen`."""
    import torch

    rows: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        case.cu_seqlens,
        case.cu_seqlens,
        case.max_seqlen,
        case.max_seqlen,
        0.0,
        case.window == (-1, 0),
        False,
        scale=case.scaling,
        window_size_left=case.window[0],
        window_size_right=case.window[1],
    )[0]
    return rows


def by_function(query: "Tensor", key: "Tensor", value: "Tensor", case: _Case) -> "Tensor":
    """Rows [T, N, D], see `varlen`."""
    from torch import Tensor
    from torch.nn.attention.varlen import varlen_attn

    by_name: dict[str, Any] = {"scale": case.scaling, "window_size": case.window}
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        by_name["enable_gqa"] = True
    bounds = (case.cu_seqlens, case.cu_seqlens, case.max_seqlen, case.max_seqlen)
    rows = varlen_attn(query, key, value, *bounds, **by_name)
    assert isinstance(rows, Tensor)
    return rows
