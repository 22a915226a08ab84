"""The work of engines around a model, with numpy alone: positions of tokens, poolings and the modules after them.

engine.rows.with_torch has poolings and modules with torch. Nothing here knows a model.

Some models want prompts left out. Their tokens are then dropped before the pooling, which is what sentence-transformers
comes to, in every mode: the first token is the first after the prompt, a mean is that of the others. Only the weights
of a weighted mean still count from the prompt's beginning. A prompt is at the start. A sequence that consists of
a prompt only is pooled as a whole, because a row needs at least one token.

Shapes: T tokens of all sequences, B sequences, S tokens of the longest, D numbers a row, K tokens that are pooled, N
entries of all sequences. Rows are float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import LAYER_NORM_EPSILON, NORMALIZE_FLOOR, Dense, LayerNorm, Step
from engine.model.weights import Arrays, read_arrays
from engine.types import Batch
from wire.parts import EXPANSION_TOKEN, PROMPT_TOKEN

_Rows = NDArray[np.float32]

_ROWS_AT_A_TIME = 32


class RowModules:
    """All steps of a model; most models have none. May be called by several threads at the same time."""

    def __init__(self, steps: Sequence[Step] = (), arrays: Sequence[Arrays] = ()) -> None:
        self._parts = list(zip(steps, arrays, strict=True))

    def __call__(self, rows: _Rows) -> _Rows:
        """Rows of the size that the last step gives."""
        for step, arrays in self._parts:
            rows = _applied(rows, step, arrays)
        return rows


def load_modules(folder: Path, steps: Sequence[Step]) -> RowModules:
    """Raises ModelError where a file has not what its config.json says."""
    return RowModules(steps, read_arrays(folder, steps))


def _applied(rows: _Rows, step: Step, arrays: Arrays) -> _Rows:
    match step:
        case Dense():
            return _dense(rows, step, arrays)
        case LayerNorm():
            return _layer_norm(rows, arrays)
        case _:
            lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
            normalized: _Rows = rows / np.maximum(lengths, np.float32(NORMALIZE_FLOOR))
            return normalized


def _dense(rows: _Rows, step: Dense, arrays: Arrays) -> _Rows:
    found: _Rows = rows @ arrays["linear.weight"].T
    if step.has_bias:
        found = found + arrays["linear.bias"]
    found = _activated(found, step.activation)
    if not step.has_residual:
        return found
    residual: _Rows = rows @ arrays["residual.weight"].T if "residual.weight" in arrays else rows
    return found + residual


def _activated(rows: _Rows, activation: str) -> _Rows:
    """activation: one of engine.model.tasks.ACTIVATIONS."""
    match activation:
        case "Identity":
            return rows
        case "Tanh":
            return np.tanh(rows)
        case "ReLU":
            return np.maximum(rows, np.float32(0))
        case "Sigmoid":
            return _sigmoid(rows)
        case "SiLU":
            return rows * _sigmoid(rows)
    assert activation == "GELU", activation
    return gelu(rows)


def gelu(rows: _Rows, *, computes_in: type[np.floating[Any]] = np.float64) -> _Rows:
    """GELU by the error function, of some rows at a time: what lies between them stays in the core's cache, which takes
    half of the time. In float32 it takes a third to a half of that."""
    found = np.empty(rows.shape, np.float32)
    for begin in range(0, len(rows), _ROWS_AT_A_TIME):
        some = rows[begin : begin + _ROWS_AT_A_TIME]
        found[begin : begin + len(some)] = 0.5 * some * (1 + _erf(some / np.sqrt(2, dtype=computes_in)))
    return found


def _layer_norm(rows: _Rows, arrays: Arrays) -> _Rows:
    centred = rows - rows.mean(axis=1, keepdims=True)
    variance = (centred * centred).mean(axis=1, keepdims=True)
    normed: _Rows = centred / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON))
    return normed * arrays["norm.weight"] + arrays["norm.bias"]


def _sigmoid(rows: _Rows) -> _Rows:
    """The sigmoid by tanh, which does not overflow."""
    found: _Rows = (0.5 * (1 + np.tanh(0.5 * rows))).astype(np.float32)
    return found


def _erf(values: NDArray[Any]) -> NDArray[Any]:
    """The error function to 1.5e-7, as float32: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26."""
    size = np.abs(values)
    t = 1 / (1 + 0.3275911 * size)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    found: NDArray[Any] = np.copysign(1 - series * np.exp(-size * size), values)
    return found


@dataclass(frozen=True, slots=True)
class Pooling:
    """The pooling of one model's token rows. May be called by several threads at the same time."""

    poolings: tuple[str, ...]  # of engine.model.tasks.POOLINGS
    modules: RowModules

    def __call__(
        self, token_rows: _Rows, seqlens: NDArray[np.int32], is_pooled: NDArray[np.bool_] | None = None
    ) -> _Rows:
        """float32 [B, D] of token rows [B, S, d].

        is_pooled [B, S]: False for tokens that are left out as if they were not there, but for their place in a
        weighted mean, and in the padding; None = none is left out. No sequence may be empty, or lose all of its tokens.
        What lies in the padding, NaN too, has no part in it.
        """
        pooled = [_pool(token_rows, seqlens, pooling, is_pooled) for pooling in self.poolings]
        return self.modules(np.concatenate(pooled, axis=1))


def _pool(token_rows: _Rows, seqlens: NDArray[np.int32], pooling: str, is_pooled: NDArray[np.bool_] | None) -> _Rows:
    match pooling:
        case "cls":
            return _at(token_rows, np.zeros_like(seqlens) if is_pooled is None else is_pooled.argmax(axis=1))
        case "last":
            last = seqlens - 1 if is_pooled is None else is_pooled.shape[1] - 1 - is_pooled[:, ::-1].argmax(axis=1)
            return _at(token_rows, last)
    if is_pooled is None:
        pairs = zip(token_rows, seqlens, strict=True)
        return np.array([_pool_one(rows[:seqlen], pooling, np.arange(seqlen)) for rows, seqlen in pairs])
    places = [np.flatnonzero(mask) for mask in is_pooled]
    return np.array([_pool_one(rows[kept], pooling, kept) for rows, kept in zip(token_rows, places, strict=True)])


def _at(token_rows: _Rows, places: NDArray[Any]) -> _Rows:
    found: _Rows = token_rows[np.arange(len(places)), places]
    return found


def _pool_one(rows: _Rows, pooling: str, places: NDArray[np.int64]) -> _Rows:
    """Pools rows [K, D] of one sequence; `places` says where each is in it.

    A sum in float64 is exact in float32 for any length, so nothing of the batch is in it.
    """
    found: NDArray[Any]
    match pooling:
        case "max":
            found = rows.max(axis=0)
        case "mean":
            found = rows.sum(axis=0, dtype=np.float64) / len(rows)
        case "mean_sqrt_len_tokens":
            found = rows.sum(axis=0, dtype=np.float64) / np.sqrt(len(rows))
        case _:
            assert pooling == "weightedmean", pooling
            weights = places + 1.0  # a token weighs as much as it has tokens up to itself
            found = weights @ rows / weights.sum()
    return found.astype(np.float32)


def pooled_in_padded(batch: Batch, index: NDArray[np.int64], is_token: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """The places [B, S] of a padded mini-batch that are pooled; None = all tokens are. For index see MiniBatch."""
    is_prompt = batch.marked(PROMPT_TOKEN)
    if is_prompt is None or not is_prompt[index].any():
        return None
    is_pooled = is_token & ~is_prompt[index]
    return np.where(is_pooled.any(axis=1, keepdims=True), is_pooled, is_token)


@dataclass(frozen=True, slots=True)
class PooledTokens:
    """The pooled tokens of a packed batch in which some are not."""

    index: NDArray[np.int64]  # [K], where they are in the batch
    cu_seqlens: NDArray[np.int64]  # [B + 1], their bounds
    num_dropped: NDArray[np.int64]  # [B], how many tokens before them are not pooled


def pooled_in_packed(batch: Batch) -> PooledTokens | None:
    """The places that are pooled; None = all are."""
    is_prompt = batch.marked(PROMPT_TOKEN)
    if is_prompt is None:
        return None
    seqlens = np.diff(batch.cu_seqlens)
    num_dropped = np.add.reduceat(is_prompt, batch.cu_seqlens[:-1], dtype=np.int64)
    num_dropped[num_dropped == seqlens] = 0
    is_dropped = is_prompt & np.repeat(num_dropped > 0, seqlens)
    return PooledTokens(np.flatnonzero(~is_dropped), np.cumsum([0, *(seqlens - num_dropped)]), num_dropped)


def largest_of_each_id(
    weights: NDArray[np.float32],
    token_ids: NDArray[np.int32],
    seqlens: NDArray[np.integer],
    *,
    unused_ids: NDArray[np.int32],
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Entries [N, 2], each token id of a sequence and its largest weight, and the bounds [B + 1] of sequences in them.

    From weights [T] and token_ids [T], sequence after sequence. Ids rise in a sequence; those without a weight and
    unused ones are left out. An id below 2**24 is exact in float32.
    """
    sequence = np.repeat(np.arange(len(seqlens)), seqlens)
    order = np.lexsort((token_ids, sequence))
    ids, sequence = token_ids[order], sequence[order]
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1]) | (sequence[1:] != sequence[:-1])
    largest = np.maximum.reduceat(weights[order], np.flatnonzero(is_first))
    ids, sequence = ids[is_first], sequence[is_first]
    is_kept = (largest != 0) & ~np.isin(ids, unused_ids)  # NaN is kept, to be noticed
    entries = np.stack((ids[is_kept].astype(np.float32), largest[is_kept]), axis=1)
    bounds = np.zeros(len(seqlens) + 1, np.int32)
    np.cumsum(np.bincount(sequence[is_kept], minlength=len(seqlens)), out=bounds[1:])
    return entries, bounds


def position_ids(batch: Batch, padding_idx: int | None) -> NDArray[np.int32]:
    """Positions [T], which start again with each sequence.

    RoBERTa and similar models (padding_idx given) number from padding_idx + 1 and skip tokens that are padding_idx
    themselves. A text can contain such a token by spelling it out.
    """
    starts = np.repeat(batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens))
    if padding_idx is None:
        return np.arange(batch.num_tokens, dtype=np.int32) - starts
    is_token = batch.token_ids != padding_idx
    num_before = np.zeros(batch.num_tokens + 1, np.int32)
    np.cumsum(is_token, out=num_before[1:])
    numbers = num_before[1:] - num_before[starts]
    if not is_token.all():
        numbers *= is_token
    return numbers + np.int32(padding_idx)


def last_tokens(batch: Batch, padding_id: int | None) -> NDArray[np.int64]:
    """The index [B] of the last token of each sequence that is not the padding's.

    If a text ends with that token, transformers' decoders take it for padding, too. If a sequence has no other token,
    they use the first. padding_id None = no token is padding.
    """
    starts, ends = batch.cu_seqlens[:-1], batch.cu_seqlens[1:]
    if padding_id is None:
        return ends.astype(np.int64) - 1
    place = np.where(batch.token_ids == padding_id, 0, np.arange(batch.num_tokens))
    return np.maximum(np.maximum.reduceat(place, starts), starts)


def num_visible(batch: Batch) -> NDArray[np.int64] | None:
    """How many tokens of each sequence [B] are not hidden from the others; None = all. Hidden ones are at the end,
    where queries of late interaction are filled up; raises ValueError where they are not."""
    is_hidden = batch.marked(EXPANSION_TOKEN)
    if is_hidden is None:
        return None
    seqlens = np.diff(batch.cu_seqlens)
    numbers = seqlens - np.add.reduceat(is_hidden, batch.cu_seqlens[:-1], dtype=np.int64)
    place = np.arange(batch.num_tokens) - np.repeat(batch.cu_seqlens[:-1], seqlens)
    if not numbers.all() or (is_hidden != (place >= np.repeat(numbers, seqlens))).any():
        raise ValueError("a sequence with hidden tokens before others, or with no others")
    return numbers
