"""Attention over sequences packed in one row: the layers of every architecture call this function.

transformers passes each layer's queries, keys and values to a function that it finds by name. On GPUs, for 16-bit
numbers, ours calls a kernel for sequences of varying length. Otherwise it computes one sequence after the other, which
on a CPU is faster than padding, a block-diagonal mask or nested tensors. It needs no mask, so no mask function is
registered, and transformers makes none: what a layer sees was told beforehand, see `visibility`.

Some models add a number to each score that depends on the head and the distance of the two tokens alone, as ALiBi and
T5 do. Such a model gives one table for all its layers: column M - 1 + d is for a key that is d tokens after its query,
for distances -(M - 1) to M - 1.

Shapes: T tokens of all sequences, S tokens of one, M of the longest (S <= M), B padded sequences side by side, N query
heads, H key heads (N = H * groups), D numbers a head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.cuda import get_device_capability
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask

from engine.machine.varlen import has_varlen, varlen
from engine.transformers.visibility import UnsupportedAttention, Visibility

# The name must not contain "flash", "sdpa", "flex_attention" or "paged|", which transformers treats in other ways.
PACKED = "embedline_packed"
# Arguments of layers that have no effect here, or say what `visibilities` knows better. Any other argument is refused.
_HARMLESS = frozenset(("max_length_k", "position_ids", "use_cache", "deterministic", "is_causal", "sliding_window"))


def register() -> None:
    """Register PACKED with transformers. It may be called more than once."""
    AttentionInterface.register(PACKED, packed_attention)


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, N, T, D]
    key: Tensor,  # [1, H, T, D]
    value: Tensor,  # [1, H, T, D]
    attention_mask: Tensor | None,
    *,
    visibilities: Mapping[nn.Module, Visibility] | None = None,
    cu_seq_lens_q: Tensor | None = None,  # int32 [B + 1], on the device of the rows
    cu_seq_lens_k: Tensor | None = None,  # the same on the host, so that reading it does not wait for the GPU
    max_length_q: int | None = None,  # no sequence is longer
    scaling: float | None = None,  # None = 1 / sqrt(D)
    softcap: float | None = None,
    distance_bias: Tensor | None = None,  # [N, 2 M - 1], M >= max_length_q: see `bias_arguments`
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Rows [1, T, N, D] in the order of the tokens. Raises UnsupportedAttention."""
    unknown = sorted(name for name, value in others.items() if value is not None and name not in _HARMLESS)
    if unknown:
        raise UnsupportedAttention(f"attention with {', '.join(unknown)}")
    if attention_mask is not None or dropout:
        raise UnsupportedAttention("attention with a mask or dropout")
    if cu_seq_lens_q is None or cu_seq_lens_k is None or max_length_q is None:
        raise UnsupportedAttention("layers that do not pass on where sequences begin")
    seen = (visibilities or {}).get(module)
    if seen is None:
        raise UnsupportedAttention("a layer of which it is not known what it sees")
    bounds = cu_seq_lens_k.tolist()
    if not query.shape[2] == key.shape[2] == bounds[-1]:
        raise UnsupportedAttention("attention to other tokens than those of the batch")
    if distance_bias is not None and (softcap or seen != Visibility(is_causal=False)):
        raise UnsupportedAttention("attention with distance_bias that is causal, or has a window or a softcap")
    if seen.chunk is not None and seen.chunk < max_length_q:  # chunks are attended to like sequences of their own
        starts = [place for start, end in pairwise(bounds) for place in range(start, end, seen.chunk)]
        bounds, max_length_q = [*starts, bounds[-1]], seen.chunk
        cu_seq_lens_q = torch.tensor(bounds, dtype=torch.int32, device=query.device)
    rule = _Rule(
        is_causal=seen.is_causal,
        scaling=query.shape[3] ** -0.5 if scaling is None else scaling,
        window=seen.window or query.shape[2],
        softcap=softcap,
        distance_bias=distance_bias,
    )
    if softcap is None and distance_bias is None and _has_kernel(query):
        return _by_kernel(query, key, value, cu_seq_lens_q, max_length_q, rule=rule), None
    rows = [
        _attend(query[:, :, start:end], key[:, :, start:end], value[:, :, start:end], rule=rule).transpose(1, 2)
        for start, end in pairwise(bounds)
    ]
    return torch.cat(rows, dim=1), None


@dataclass(frozen=True, slots=True)
class _Rule:
    """The rule by which tokens of a sequence attend to each other."""

    is_causal: bool
    scaling: float
    window: int  # a token attends to tokens fewer than this many away
    softcap: float | None
    distance_bias: Tensor | None  # [N, 2 M - 1]


def _has_kernel(query: Tensor) -> bool:
    return query.is_cuda and has_varlen(query.shape[3], query.dtype, get_device_capability(query.device))


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int, *, rule: _Rule
) -> Tensor:
    """All sequences at once: rows [1, T, N, D]."""
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    window = rule.window if rule.window < max_seqlen else None
    return varlen(
        query, key, value, cu_seqlens, max_seqlen, is_causal=rule.is_causal, scaling=rule.scaling, window=window
    )[None]


def _attend(query: Tensor, key: Tensor, value: Tensor, *, rule: _Rule) -> Tensor:
    """One sequence: rows [1, N, S, D]."""
    if rule.distance_bias is not None:
        bias = biases_of_reversed_keys(rule.distance_bias, query.shape[2])
        return functional.scaled_dot_product_attention(
            query, key.flip(2), value.flip(2), bias[None], scale=rule.scaling, enable_gqa=True
        )
    if rule.softcap is not None:
        return _softcapped(query, key, value, scaling=rule.scaling, softcap=rule.softcap, visible=_visible(query, rule))
    mask = _visible(query, rule) if query.shape[2] > rule.window else None
    return functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=rule.is_causal and mask is None, scale=rule.scaling, enable_gqa=True
    )


def biases_of_reversed_keys(table: Tensor, seqlen: int) -> Tensor:
    """The biases [N, S, S] of queries (rows) and keys (columns), the keys from the last to the first.

    In this order column c of row r is for the distance S - 1 - c - r, so all of them are a view of a reversed row of
    the table: no memory is taken, however long the sequence is.
    """
    middle = table.shape[1] // 2
    near = table[:, middle - seqlen + 1 : middle + seqlen]
    return near.flip(1).unfold(1, seqlen, 1)


def bias_arguments(
    config: PreTrainedConfig,
    rows: Tensor,  # [B, M, …], or of all tokens in one row
    attention_mask: Tensor | None,  # of the model's forward
    biases: Callable[[Tensor], Tensor],  # [N, …] of distances int64 […]
    max_seqlen: int | None,  # the forward's max_length_q; None = padded
) -> dict[str, Any]:
    """The arguments attention_mask and distance_bias of attention, the same for all layers.

    Packed sequences have no mask. Others have the biases in it, minus infinity where a query does not see a key.
    """
    if max_seqlen is not None:
        distances = torch.arange(1 - max_seqlen, max_seqlen, device=rows.device)
        return {"attention_mask": None, "distance_bias": biases(distances).to(rows.dtype)}
    position = torch.arange(rows.shape[1], device=rows.device)
    bias = biases(position - position[:, None]).to(rows.dtype)[None]
    mask = create_bidirectional_mask(config=config, inputs_embeds=rows, attention_mask=attention_mask)
    assert mask is None or isinstance(mask, torch.Tensor), "another kind is for flex_attention alone"
    return {"attention_mask": bias if mask is None else bias.masked_fill(~mask, -torch.inf)}


def _visible(query: Tensor, rule: _Rule) -> Tensor:
    """Whether a query (row) attends to a key (column), bool [S, S]."""
    position = torch.arange(query.shape[2], device=query.device)
    distance = position[:, None] - position
    near = distance.abs() < rule.window
    return near & (distance >= 0) if rule.is_causal else near


def _softcapped(
    query: Tensor, key: Tensor, value: Tensor, *, scaling: float, softcap: float, visible: Tensor
) -> Tensor:
    """Attention with scores squeezed into -softcap … softcap, which SDPA can't do."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = torch.tanh(query @ key.mT * scaling / softcap) * softcap
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1, dtype=torch.float32)
    return weights.to(value.dtype) @ value
