"""What each kernel is given, and how many bytes that is.

Shapes: T tokens, h numbers a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.random_models import bias_of_words
from engine.fused.model.ops import (
    EmbeddingTables,
    Heads,
    Inputs,
    Norm,
    NormOutputs,
    Ops,
    QuantizedRows,
    RaggedRows,
    Tiles,
    WordScores,
)
from engine.fused.packing import choose_block, tile_table

Arguments = tuple[Tensor, ...]
Make = Callable[[int, torch.device, int], Arguments]  # tokens, device, seed -> what `call` takes
Result = Tensor | QuantizedRows | RaggedRows
_BF16 = 2  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel at one width."""

    name: str
    width: str
    bytes_per_token: float
    inputs: Make
    call: Callable[[Ops, Arguments], Result]
    is_quantized: bool = False
    num_weight_bytes: int = 0  # read once, however many tokens there are
    flop_per_token: float = 0.0  # of a matrix product; 0 = there is none
    num_words: int = 0  # of the vocabulary, where rows are ragged


def cases(*, is_tiny: bool) -> list[Case]:
    """At the widths of MiniLM, BERT-base, bge-m3, and Qwen3 0.6B and 8B."""
    if is_tiny:
        return [
            _add_norm("rms", 64, is_quantized=True),
            _add_norm("layer", 64, is_quantized=False),
            _activate("silu", 48, is_gated=True, is_quantized=True),
            _rotate(2, 1, 16),
            _quantize(64),
            _pool(64, seqlen=8),
            _gather(64),
            _embed(64, vocab_size=100),
            _vocabulary(64, num_words=1000, seqlen=8),
        ]
    both = (False, True)
    return [
        *(_add_norm("rms", h, is_quantized=quantized) for h in (1024, 4096) for quantized in both),
        *(_add_norm("layer", h, is_quantized=quantized) for h in (384, 1024) for quantized in both),
        *(_activate("silu", n, is_gated=True, is_quantized=quantized) for n in (3072, 12_288) for quantized in both),
        *(_activate("gelu", n, is_gated=False, is_quantized=quantized) for n in (1536, 4096) for quantized in both),
        *(_rotate(heads, 8, 128) for heads in (16, 32)),
        *(_quantize(h) for h in (1024, 2048, 4096)),
        _pool(384, seqlen=128),
        _gather(2048),
        _embed(384, vocab_size=30_522),
        _embed(1024, vocab_size=151_669),
        _vocabulary(768, num_words=30_522, seqlen=128),
        _vocabulary(1024, num_words=250_002, seqlen=512),
    ]


def _random(shape: Sequence[int], device: torch.device, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, device=device, dtype=torch.bfloat16)


def _rows(num: int, width: int) -> Make:
    """So many tensors [T, width]."""

    def make(num_tokens: int, device: torch.device, seed: int) -> Arguments:
        return tuple(_random((num_tokens, width), device, num * seed + number) for number in range(num))

    return make


def _norm(kind: str, weights: Sequence[Tensor]) -> Norm:
    """Of its weight, and a layer norm's bias."""
    weight, *bias = weights
    return Norm(kind, weight, bias[0] if bias else None, 1e-6)


def _norm_weights(kind: str, width: int, device: torch.device) -> Arguments:
    """float32."""
    return tuple(_random((width,), device, number).float() for number in range(2 if kind == "layer" else 1))


def _add_norm(kind: str, h: int, *, is_quantized: bool) -> Case:
    """Reads what is added and what it is added to, writes the sum and its norm."""

    def make(num_tokens: int, device: torch.device, seed: int) -> Arguments:
        return *_rows(2, h)(num_tokens, device, seed), *_norm_weights(kind, h, device)

    def call(ops: Ops, inputs: Arguments) -> Tensor | QuantizedRows:
        hidden, residual, *weights = inputs
        normed = ops.add_norm(
            hidden,
            residual,
            _norm(kind, weights),
            outputs=NormOutputs.RESIDUAL | (NormOutputs.QUANTIZED if is_quantized else NormOutputs.ROWS),
        )
        found = normed.quantized if is_quantized else normed.rows
        assert found is not None
        return found

    return Case(
        name=f"add + {kind} norm",
        width=f"h={h}",
        bytes_per_token=h * (3 * _BF16 + (1 if is_quantized else _BF16)),
        inputs=make,
        call=call,
        is_quantized=is_quantized,
    )


def _activate(activation: str, width: int, *, is_gated: bool, is_quantized: bool) -> Case:
    def call(ops: Ops, inputs: Arguments) -> Tensor | QuantizedRows:
        return ops.activate(inputs[0], activation, is_gated=is_gated, is_quantized=is_quantized)

    num_read = 2 * width if is_gated else width
    return Case(
        name=f"{activation}{' x gate' if is_gated else ''}",
        width=f"I={width}",
        bytes_per_token=num_read * _BF16 + width * (1 if is_quantized else _BF16),
        inputs=_rows(1, num_read),
        call=call,
        is_quantized=is_quantized,
    )


def _rotate(num_query: int, num_key: int, head_dim: int) -> Case:
    """In place, on rows that hold values as well, so each call works on what the last one left."""
    rotated = (num_query + num_key) * head_dim

    def make(num_tokens: int, device: torch.device, seed: int) -> Arguments:
        rows = _random((num_tokens, rotated + num_key * head_dim), device, seed)
        positions = torch.arange(num_tokens, device=device, dtype=torch.int32)
        exponents = torch.arange(0, head_dim, 2, device=device) / head_dim
        angles = positions[:, None] * 10_000.0**-exponents
        return rows, positions, torch.cat((angles.cos(), angles.sin()), dim=1), *_norm_weights("rms", head_dim, device)

    def call(ops: Ops, inputs: Arguments) -> Tensor:
        rows, positions, angles, weight = inputs
        norm = _norm("rms", [weight])
        ops.rotate(rows, positions, angles, Heads(num_query, num_key, head_dim, norm, norm))
        return rows[:, :rotated]

    return Case(
        name="head norms + rotation",
        width=f"N={num_query} H={num_key} D={head_dim}",
        bytes_per_token=2 * rotated * _BF16 + head_dim * 4,
        inputs=make,
        call=call,
    )


def _quantize(h: int) -> Case:
    return Case(
        name="quantize",
        width=f"h={h}",
        bytes_per_token=h * (_BF16 + 1),
        inputs=_rows(1, h),
        call=lambda ops, inputs: ops.quantize(inputs[0]),
        is_quantized=True,
    )


def _pool(h: int, *, seqlen: int) -> Case:
    def make(num_tokens: int, device: torch.device, seed: int) -> Arguments:
        bounds = torch.arange(0, num_tokens + 1, seqlen, device=device, dtype=torch.int32)
        return _random((num_tokens, h), device, seed), bounds

    return Case(
        name="mean of sequences",
        width=f"h={h} S={seqlen}",
        bytes_per_token=h * (_BF16 + 4 / seqlen),
        inputs=make,
        call=lambda ops, inputs: ops.pool(*inputs),
    )


def _gather(h: int) -> Case:
    """Keys and values out of rows that queries precede; half of the tokens are as those before them."""

    def make(num_tokens: int, device: torch.device, seed: int) -> Arguments:
        places = torch.arange(num_tokens, device=device, dtype=torch.int32) % (num_tokens // 2)
        return _random((num_tokens // 2, 2 * h), device, seed)[:, h:], places

    return Case(
        name="gathered keys and values",
        width=f"h={h}",
        bytes_per_token=1.5 * h * _BF16,
        inputs=make,
        call=lambda ops, inputs: ops.gather(*inputs),
    )


def _embed(h: int, *, vocab_size: int) -> Case:
    def make(num_tokens: int, device: torch.device, seed: int) -> Arguments:
        token_ids = torch.arange(num_tokens, device=device, dtype=torch.int32) * 7919 % vocab_size
        return _random((vocab_size, h), device, seed), token_ids

    return Case(
        name="embedding",
        width=f"h={h} V={vocab_size}",
        bytes_per_token=2 * h * _BF16,
        inputs=make,
        call=partial(_embedded, scale=1.0),
    )


def _embedded(ops: Ops, inputs: Arguments, *, scale: float) -> Tensor:
    words, token_ids = inputs
    tiles = Tiles(token_ids, 16)  # of those nothing is read here
    given = Inputs(token_ids, token_ids, None, token_ids, token_ids, tiles, tiles)
    return ops.embed(given, EmbeddingTables(words, None, None, scale))


def _vocabulary(h: int, *, num_words: int, seqlen: int) -> Case:
    block = choose_block(np.array([0, seqlen], np.int32))

    def make(num_tokens: int, device: torch.device, seed: int) -> Arguments:
        bounds = np.arange(0, num_tokens + 1, seqlen, dtype=np.int32)
        table = torch.from_numpy(tile_table(bounds, block=block)).to(device)
        bias = torch.full((num_words,), bias_of_words(h**0.5, seqlen), device=device)
        words = _random((num_words, h), device, seed + 1)
        return _random((num_tokens, h), device, seed), words, bias, table, torch.from_numpy(bounds).to(device)

    def call(ops: Ops, inputs: Arguments) -> RaggedRows:
        hidden, words, bias, table, bounds = inputs
        return ops.vocabulary_weights(hidden, WordScores(words, bias, False), Tiles(table, block), bounds)

    return Case(
        name="weights of words",
        width=f"h={h} V={num_words} S={seqlen}",
        bytes_per_token=h * _BF16,
        num_weight_bytes=num_words * h * _BF16,
        flop_per_token=2.0 * h * num_words,
        num_words=num_words,
        inputs=make,
        call=call,
    )
