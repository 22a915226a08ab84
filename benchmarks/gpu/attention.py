"""Every way to attend that the fused engine may choose from: speed by head shape and length, and error against float64.

A batch is about 16,384 tokens in sequences of one length. Outside a graph the host's part of a call counts, inside it
does not. Queries, keys and values are views of one packed tensor, as the product before them leaves them.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import median_seconds, rotation
from benchmarks.gpu.fused_models import ops_for
from benchmarks.gpu.rows import Figure, Key
from engine.fused.attention import Candidate, candidates_for
from engine.fused.attention_timing import Sample, packed_sample
from engine.fused.model.blocks import Attend
from engine.fused.model.ops import AttentionRule
from engine.fused.model.spec import LayerSpec, Spec

KIND = "attention"
_NUM_TOKENS = 16_384
_SECONDS = 0.1
_HEADS_COMPARED = 2  # of queries, in the first sequence


@dataclass(frozen=True, slots=True)
class HeadShape:
    """N query heads, H key heads, D numbers a head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __str__(self) -> str:
        return f"D={self.head_dim} N={self.num_heads} H={self.num_kv_heads}"


_HEADS = (HeadShape(32, 8, 128), HeadShape(16, 8, 128), HeadShape(16, 16, 64), HeadShape(12, 12, 32))
_SEQLENS = (512, 128, 8192, 32, 2048)
_SWEPT_HEADS, _SWEPT_SEQLENS = (_HEADS[0], _HEADS[2]), (512, 8192)
_SWEPT_SIZES = ((64, 128), (4, 8), (2, 3, 4))  # keys a step, warps, stages
_TINY_HEADS, _TINY_SEQLENS, _TINY_NUM_TOKENS = (HeadShape(4, 2, 16),), (24,), 48


def run(bench: Bench) -> None:
    """All head shapes at all lengths, causal and not."""
    for heads in _TINY_HEADS if bench.is_tiny else _HEADS:
        for seqlen in _TINY_SEQLENS if bench.is_tiny else _SEQLENS:
            for is_causal in (True, False):
                spec = _spec(heads, is_causal=is_causal)
                for candidate in _candidates(bench, spec, seqlen):
                    shape = f"{heads} S={seqlen}{' causal' if is_causal else ''}"
                    work = partial(_measure, bench, spec, candidate, seqlen)
                    bench.measure(Key(KIND, candidate.name, "bf16", shape), work)
    if bench.clock.is_gpu:
        _sweep(bench)


def _sweep(bench: Bench) -> None:
    """Our kernel launched in other ways, for whoever picks what the engine tries at load. Last, as it takes long."""
    from engine.fused.kernels.attention import Sizes, attend  # Triton need not be there on a CPU

    def with_sizes(sizes: Sizes) -> Attend:
        return lambda query, key, value, inputs, rule: attend(query, key, value, inputs.tiles, rule, sizes=sizes)

    for heads, seqlen in itertools.product(_SWEPT_HEADS, _SWEPT_SEQLENS):
        for launch in itertools.product(*_SWEPT_SIZES):
            name = "tiles {} keys {} warps {} stages".format(*launch)
            candidate = Candidate(name, with_sizes(Sizes(*launch)), is_by_tiles=True)
            work = partial(_measure, bench, _spec(heads, is_causal=True), candidate, seqlen)
            bench.measure(Key(KIND, name, "bf16", f"{heads} S={seqlen} causal"), work)


def _candidates(bench: Bench, spec: Spec, seqlen: int) -> tuple[Candidate, ...]:
    """On a CPU there are no alternatives."""
    device = bench.clock.device
    capability = torch.cuda.get_device_capability(device) if bench.clock.is_gpu else (0, 0)
    return candidates_for(spec, torch.bfloat16, capability, has_bias=False, max_seqlen=seqlen)


def _measure(bench: Bench, spec: Spec, candidate: Candidate, seqlen: int) -> Iterator[Figure]:
    num_seqs = max(1, (_TINY_NUM_TOKENS if bench.is_tiny else _NUM_TOKENS) // seqlen)
    ops, device = ops_for(bench.clock.device), bench.clock.device
    cu_seqlens = np.arange(num_seqs + 1, dtype=np.int32) * np.int32(seqlen)
    rule = AttentionRule(spec.is_causal, spec.scaling)
    samples: list[Sample] = []

    def make(seed: int) -> Callable[[], Tensor]:
        sample = packed_sample(spec, cu_seqlens, seed=seed, dtype=torch.bfloat16, device=device)
        samples.append(sample)
        rows = sample.query, sample.key, sample.value
        if candidate.attend is None:
            return partial(ops.attend, *rows, sample.inputs.tiles, rule)
        return partial(candidate.attend, *rows, sample.inputs, rule)

    num_bytes = 2 * num_seqs * seqlen * (spec.num_heads + spec.num_kv_heads) * 2 * spec.head_dim
    calls = rotation(make, num_bytes=num_bytes, clock=bench.clock)
    yield Figure("error", _error(make(1)(), samples[-1], rule, seqlen), "", "against float64")
    flop = 4 * num_seqs * seqlen**2 * spec.num_heads * spec.head_dim / (2 if spec.is_causal else 1)
    for where, in_graph in (("call by call", False), ("in a graph", True)):
        seconds = median_seconds(bench.clock, calls, seconds=bench.sized(_SECONDS, 0.0), in_graph=in_graph)
        yield Figure(f"rate {where}", flop / seconds / 1e12, "TFLOP/s")


def _error(rows: Tensor, sample: Sample, rule: AttentionRule, seqlen: int) -> float:
    """Of the first sequence and some heads: norm(rows - exact) / norm(exact)."""
    groups = sample.query.shape[1] // sample.key.shape[1]
    heads = [0, sample.query.shape[1] - 1][:_HEADS_COMPARED]
    query = sample.query[:seqlen, heads].double().transpose(0, 1)
    key, value = (
        part[:seqlen, [head // groups for head in heads]].double().transpose(0, 1)
        for part in (sample.key, sample.value)
    )
    scores = query @ key.mT * rule.scaling
    if rule.is_causal:
        scores.masked_fill_(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
    exact = (scores.softmax(dim=-1) @ value).transpose(0, 1)
    return float((rows[:seqlen, heads].double() - exact).norm() / exact.norm())


def _spec(heads: HeadShape, *, is_causal: bool) -> Spec:
    """As much of a model as attention asks for."""
    return Spec(
        architecture="",
        family="llama",
        hidden_size=heads.num_heads * heads.head_dim,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        intermediate_size=16,
        vocab_size=16,
        activation="silu",
        is_gated=True,
        norm="rms",
        norm_eps=1e-6,
        is_causal=is_causal,
        scaling=heads.head_dim**-0.5,
        layers=(LayerSpec(),),
    )
