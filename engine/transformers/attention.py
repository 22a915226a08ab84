"""Attention over sequences packed in one row: the layers of every architecture call this function.

transformers passes each layer's queries, keys and values to a function that it finds by name. On GPUs, for 16-bit
numbers, ours calls a kernel for sequences of varying length. Otherwise it computes one sequence after the other, which
on a CPU is faster than padding, a block-diagonal mask or nested tensors. It needs no mask, so no mask function is
registered, and transformers makes none: what a layer sees was told beforehand, see `visibility`.

Some models add a number to each score that depends on the head and the distance of the two tokens alone, as ALiBi and
T5 do. Such a model gives one table for all its layers: column M - 1 + d is for a key that is d tokens after its query,
for distances -(M - 1) to M - 1.

Where sequences begin alike, the row has each token of a common beginning once. A sequence then attends from the tokens
that it has alone, to all of its own. Merging a part over the beginning, the same for all, and a part over the rest, by
the sums of their weights, was slower on a CPU.

Shapes: T tokens of all sequences, U unique ones (U = T where nothing is shared), S tokens of one sequence, Q of them
that attend, M of the longest (S <= M), B padded sequences side by side, N query heads, H key heads (N = H * groups), D
numbers a head.
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

# Of a sequence with a prefix, so many attend at once: SDPA computes all that a mask hides. On a CPU more took 1.5 times
# as long where sequences have 1,024 tokens, and fewer gained nothing.
_MAX_QUERIES = 256


@dataclass(frozen=True, slots=True)
class UniqueRows:
    """The rows of a batch whose sequences begin alike; see `engine.rows.shared_prefixes`."""

    first: Tensor  # int64 [U], on the device of the rows: the token of the batch that each row is of
    places: Tensor  # int64 [T], there too: the row of each token
    bounds: list[int]  # [B + 1], of the rows that each sequence adds to those before it


def register() -> None:
    """Register PACKED with transformers. It may be called more than once."""
    AttentionInterface.register(PACKED, packed_attention)


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, N, U, D]
    key: Tensor,  # [1, H, U, D]
    value: Tensor,  # [1, H, U, D]
    attention_mask: Tensor | None,
    *,
    visibilities: Mapping[nn.Module, Visibility] | None = None,
    unique: UniqueRows | None = None,  # None = no sequence shares anything
    cu_seq_lens_q: Tensor | None = None,  # int32 [B + 1], on the device of the rows
    cu_seq_lens_k: Tensor | None = None,  # the same on the host, so that reading it does not wait for the GPU
    max_length_q: int | None = None,  # no sequence is longer
    scaling: float | None = None,  # None = 1 / sqrt(D)
    softcap: float | None = None,
    distance_bias: Tensor | None = None,  # [N, 2 M - 1], M >= max_length_q: see `bias_arguments`
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Rows [1, U, N, D] in the order of the tokens. Raises UnsupportedAttention."""
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
    num_rows = bounds[-1] if unique is None else unique.bounds[-1]
    if not query.shape[2] == key.shape[2] == num_rows:
        raise UnsupportedAttention("attention to other tokens than those of the batch")
    if distance_bias is not None and (softcap or unique is not None or seen != Visibility(is_causal=False)):
        raise UnsupportedAttention("attention with distance_bias that is causal, or has a window, softcap or prefixes")
    rule = _Rule(
        is_causal=seen.is_causal,
        scaling=query.shape[3] ** -0.5 if scaling is None else scaling,
        window=seen.window or bounds[-1],
        softcap=softcap,
        distance_bias=distance_bias,
    )
    has_kernel = softcap is None and distance_bias is None and _has_kernel(query)
    chunk = seen.chunk if seen.chunk is not None and seen.chunk < max_length_q else None
    if unique is not None and not has_kernel and chunk is None:
        return _of_unique(query, key, value, bounds, unique, rule=rule), None
    if unique is not None:
        query, key, value = (tensor.index_select(2, unique.places) for tensor in (query, key, value))
    if chunk is not None:  # chunks are attended to like sequences of their own
        starts = [place for start, end in pairwise(bounds) for place in range(start, end, chunk)]
        bounds, max_length_q = [*starts, bounds[-1]], chunk
        cu_seq_lens_q = torch.tensor(bounds, dtype=torch.int32, device=query.device)
    if has_kernel:
        rows = _by_kernel(query, key, value, cu_seq_lens_q, max_length_q, rule=rule)
    else:
        rows = _one_by_one(query, key, value, bounds, rule=rule)
    return rows if unique is None else rows.index_select(1, unique.first), None


def _one_by_one(query: Tensor, key: Tensor, value: Tensor, bounds: list[int], *, rule: "_Rule") -> Tensor:
    """One sequence after the other: rows [1, T, N, D]."""
    rows = [
        _attend(query[:, :, start:end], key[:, :, start:end], value[:, :, start:end], rule=rule).transpose(1, 2)
        for start, end in pairwise(bounds)
    ]
    return torch.cat(rows, dim=1)


def _of_unique(
    query: Tensor, key: Tensor, value: Tensor, bounds: list[int], unique: UniqueRows, *, rule: "_Rule"
) -> Tensor:
    """The same from unique rows and to them: [1, U, N, D]."""
    rows = []
    for (start, end), (first, last) in zip(pairwise(bounds), pairwise(unique.bounds), strict=True):
        num_shared = end - start - (last - first)
        parts = [tensor[:, :, first:last] for tensor in (key, value)]
        if num_shared:
            parts = [tensor.index_select(2, unique.places[start:end]) for tensor in (key, value)]
        step = _MAX_QUERIES if num_shared and rule.is_causal else last - first
        for begin in range(first, last, step):
            stop = min(begin + step, last)
            keys, values = (part[:, :, : num_shared + stop - first] for part in parts)
            rows.append(_attend(query[:, :, begin:stop], keys, values, rule=rule).transpose(1, 2))
    return torch.cat(rows, dim=1)


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
    """One sequence, whose last tokens attend to all of it: rows [1, N, Q, D]."""
    if rule.distance_bias is not None:
        bias = biases_of_reversed_keys(rule.distance_bias, key.shape[2])
        return functional.scaled_dot_product_attention(
            query, key.flip(2), value.flip(2), bias[None], scale=rule.scaling, enable_gqa=True
        )
    if rule.softcap is not None:
        visible = _visible(query, key, rule)
        return _softcapped(query, key, value, scaling=rule.scaling, softcap=rule.softcap, visible=visible)
    # SDPA's own causal mask is that of a sequence's first queries
    is_masked = key.shape[2] > rule.window or (rule.is_causal and query.shape[2] < key.shape[2])
    mask = _visible(query, key, rule) if is_masked else None
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


def _visible(query: Tensor, key: Tensor, rule: _Rule) -> Tensor:
    """Whether a query (row) attends to a key (column), bool [Q, S]; the queries are those of the last tokens."""
    position = torch.arange(key.shape[2], device=query.device)
    distance = position[-query.shape[2] :, None] - position
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
