"""Each op in plain torch, on any device: slow, but the reference that kernels are compared with."""

import torch
from torch import Tensor
from torch.nn import functional

from engine.fused.model.ops import (
    AttentionRule,
    EmbeddingTables,
    Heads,
    Inputs,
    Norm,
    NormedRows,
    NormOutputs,
    QuantizedRows,
    RaggedRows,
    Rows,
    Tiles,
    WordScores,
)

_MAX_FP8 = 448.0  # the largest float8_e4m3fn


class ReferenceOps:
    """See engine.fused.model.ops.Ops."""

    def embed(self, inputs: Inputs, tables: EmbeddingTables) -> Tensor:
        total = tables.words[inputs.token_ids.long()].float() * tables.scale
        if tables.positions is not None:
            total += tables.positions[inputs.positions.long()].float()
        if tables.types is not None:
            types = inputs.token_type_ids
            total += tables.types[0 if types is None else types.long()].float()
        return total.to(tables.words.dtype)

    def add_norm(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        norm: Norm,
        *,
        hidden_norm: Norm | None = None,
        outputs: NormOutputs = NormOutputs.RESIDUAL | NormOutputs.ROWS,
    ) -> NormedRows:
        total = hidden.float() if hidden_norm is None else _normalise(hidden.float(), hidden_norm)
        if residual is not None:
            total = total + residual.float()
        total = total.to(hidden.dtype)
        normed = _normalise(total.float(), norm)
        return NormedRows(
            total if NormOutputs.RESIDUAL in outputs else None,
            normed.to(hidden.dtype) if NormOutputs.ROWS in outputs else None,
            self.quantize(normed) if NormOutputs.QUANTIZED in outputs else None,
        )

    def rotate(self, rows: Tensor, positions: Tensor, angles: Tensor | None, heads: Heads) -> None:
        num_query, num_key, dim = heads.num_query_heads, heads.num_key_heads, heads.head_dim
        view = rows[:, : (num_query + num_key) * dim].view(len(rows), num_query + num_key, dim)
        for part, norm in ((view[:, :num_query], heads.query_norm), (view[:, num_query:], heads.key_norm)):
            values = part.float()
            if norm is not None:
                values = _normalise(values, norm)
            if angles is not None:
                values = _rotated(values, angles[positions.long()])
            part.copy_(values)

    def activate(self, rows: Tensor, activation: str, *, is_gated: bool, is_quantized: bool) -> Rows:
        values = rows.float()
        first, second = values.chunk(2, dim=1) if is_gated else (values, None)
        activated = _activated(first, activation)
        if second is not None:
            activated = activated * second
        return self.quantize(activated) if is_quantized else activated.to(rows.dtype)

    def quantize(self, rows: Tensor) -> QuantizedRows:
        values = rows.float()
        scales = values.abs().amax(dim=1, keepdim=True) / _MAX_FP8
        scales = torch.where(scales == 0, 1.0, scales)
        scaled = (values / scales).clamp(-_MAX_FP8, _MAX_FP8)
        return QuantizedRows(scaled.to(torch.float8_e4m3fn), scales)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, rule: AttentionRule) -> Tensor:
        rows = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        for first, num_queries, position, first_key, num_keys, _ in tiles.table.tolist():
            if num_queries:
                queries = slice(first, first + num_queries)
                keys = slice(first_key, first_key + num_keys)
                rows[queries] = _attended(query[queries], key[keys], value[keys], position, rule)
        return rows

    def gather(self, rows: Tensor, places: Tensor) -> Tensor:
        return rows[places.clamp(min=0).long()]

    def pool(self, rows: Tensor, cu_seqlens: Tensor) -> Tensor:
        sequences = [
            rows[start:end].double() for start, end in torch.stack((cu_seqlens[:-1], cu_seqlens[1:]), 1).tolist()
        ]
        return torch.stack([sequence.sum(dim=0) / max(1, len(sequence)) for sequence in sequences]).float()

    def vocabulary_weights(self, hidden: Tensor, scores: WordScores, tiles: Tiles, cu_seqlens: Tensor) -> RaggedRows:
        words, bias = scores.words.float(), None if scores.bias is None else scores.bias.float()
        counts, entries = [], []
        for start, end in torch.stack((cu_seqlens[:-1], cu_seqlens[1:]), 1).tolist():
            weights = functional.linear(hidden[start:end].float(), words, bias).relu_()
            largest = weights.amax(dim=0) if start < end else weights.new_zeros(len(words))
            largest = largest.log1p_().log1p_() if scores.is_log_twice else largest.log1p_()
            ids = largest.nonzero()[:, 0]  # of NaN, too, to be noticed
            counts.append(len(ids))
            entries.append(torch.stack((ids.float(), largest[ids]), dim=1))
        return RaggedRows(torch.tensor(counts, dtype=torch.int32), torch.cat(entries))


def _normalise(rows: Tensor, norm: Norm) -> Tensor:
    """float32 [..., h] of the same."""
    if norm.kind == "layer":
        return functional.layer_norm(rows, rows.shape[-1:], norm.weight, norm.bias, norm.eps)
    assert norm.kind == "rms", norm.kind
    return functional.rms_norm(rows, rows.shape[-1:], norm.weight, norm.eps)


def _rotated(values: Tensor, angles: Tensor) -> Tensor:
    """[T, heads, D] by angles [T, rotated]."""
    cosines, sines = angles[:, None].chunk(2, dim=-1)
    half = cosines.shape[-1]
    first, second, rest = values[..., :half], values[..., half : 2 * half], values[..., 2 * half :]
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines, rest), dim=-1)


def _activated(rows: Tensor, activation: str) -> Tensor:
    match activation:
        case "silu":
            return functional.silu(rows)
        case "gelu":
            return functional.gelu(rows)
        case "gelu_tanh":
            return functional.gelu(rows, approximate="tanh")
        case "relu":
            return functional.relu(rows)
    raise AssertionError(activation)


def _attended(query: Tensor, key: Tensor, value: Tensor, position: int, rule: AttentionRule) -> Tensor:
    """[Q, N, D] of query [Q, N, D], key and value [K, H, D]; `position` is the first query's."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (part.float().repeat_interleave(groups, dim=1) for part in (key, value))
    scores = torch.einsum("qnd,knd->nqk", query.float(), keys) * rule.scaling
    distance = (
        torch.arange(len(key), device=key.device)
        - torch.arange(position, position + len(query), device=key.device)[:, None]
    )
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if rule.relative_bias is not None:
        reach = rule.relative_bias.shape[1] // 2
        scores = scores + rule.relative_bias[:, distance.clamp(-reach, reach) + reach]
    visible = torch.ones_like(distance, dtype=torch.bool) if rule.window is None else distance.abs() < rule.window
    if rule.is_causal:
        visible &= distance <= 0
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    return torch.einsum("nqk,knd->qnd", weights, values).to(query.dtype)
