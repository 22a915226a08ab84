"""Everybody's attention: speed by head shape and length, and error against float64.

Ours in many sizes, PyTorch's FlashAttention-2, and cuDNN's operator, called and in a graph. The engine attends with
ours alone. Nobody may rely on the others, so each has a process of its own, which may die or hang: what ended it is a
failed row, and the next process goes on behind it.

A batch is about 16,384 tokens in sequences of one length. Outside a graph the host's part of a call counts, inside it
does not. Queries, keys and values are views of one packed tensor, as the product before them leaves them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu import attention_cases as known
from benchmarks.gpu.attention_cases import Case, Launch
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import median_seconds, rotation
from benchmarks.gpu.fused_models import ops_for
from benchmarks.gpu.rows import Figure, Key
from engine.fused.model.ops import AttentionRule, Ops, Tiles
from engine.fused.packing import choose_block, tile_table
from engine.machine.varlen import varlen

KIND = "attention"
_NUM_TOKENS, _TINY_NUM_TOKENS = 16_384, 48
_SECONDS = 0.1
CALLED, IN_GRAPH = "call by call", "in a graph"


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch."""

    query: Tensor  # [T, N, D]
    key: Tensor  # [T, H, D]
    value: Tensor  # [T, H, D]
    bounds: Tensor  # int32 [B + 1]
    tiles: Tiles
    seqlen: int


Attend = Callable[[Sample, AttentionRule], Tensor]


def run(bench: Bench, candidate: str) -> None:
    """All cases of one candidate."""
    for case in known.cases(is_tiny=bench.is_tiny):
        for subject, attend in _ways(bench, candidate, case):
            wheres = {known.CUDNN: (CALLED,), known.CUDNN_IN_GRAPH: (IN_GRAPH,)}.get(candidate, (CALLED, IN_GRAPH))
            work = partial(_measure, bench, case, attend, wheres)
            bench.measure(Key(KIND, subject, "bf16", str(case)), work, max_begun=1)


def _ways(bench: Bench, candidate: str, case: Case) -> Iterator[tuple[str, Attend]]:
    """By the names of their rows. On a CPU there is but the reference."""
    if candidate == known.TILES:
        yield known.TILES, partial(_by_tiles, ops_for(bench.clock.device))
    if not bench.clock.is_gpu:
        return
    if candidate in (known.TILES, known.BY_BOXES):
        for launch in known.launches(case, by_boxes=candidate == known.BY_BOXES):
            yield f"{known.TILES} {launch}", partial(_launched, launch)
    if candidate == known.FLASH:
        yield known.FLASH, flash_attend
    if candidate in (known.CUDNN, known.CUDNN_IN_GRAPH):
        yield candidate, cudnn_attend


def _by_tiles(ops: Ops, sample: Sample, rule: AttentionRule) -> Tensor:
    """As the engine does."""
    return ops.attend(sample.query, sample.key, sample.value, sample.tiles, rule)


def _launched(launch: Launch, sample: Sample, rule: AttentionRule) -> Tensor:
    from engine.fused.kernels.attention import Sizes, attend  # Triton need not be there on a CPU

    sizes = Sizes(launch.keys, launch.warps, launch.stages, launch.registers, by_boxes=launch.by_boxes)
    return attend(sample.query, sample.key, sample.value, sample.tiles, rule, sizes=sizes)


def flash_attend(sample: Sample, rule: AttentionRule) -> Tensor:
    """FlashAttention-2, made for Ampere, so it leaves a part of Hopper unused."""
    rows = sample.query, sample.key, sample.value
    return varlen(*rows, sample.bounds, sample.seqlen, is_causal=rule.is_causal, scaling=rule.scaling)


def cudnn_attend(sample: Sample, rule: AttentionRule) -> Tensor:
    """For packed sequences PyTorch has it only as a private operator, which makes a plan in every call."""
    bounds = (sample.bounds, sample.bounds, sample.seqlen, sample.seqlen)
    options = (False, 0.0, rule.is_causal, False)  # no log-sum-exp, no dropout, no debug mask
    attend = torch.ops.aten._cudnn_attention_forward
    rows: Tensor = attend(sample.query, sample.key, sample.value, None, *bounds, *options, scale=rule.scaling)[0]
    return rows


def _measure(bench: Bench, case: Case, attend: Attend, wheres: tuple[str, ...]) -> Iterator[Figure]:
    num_seqs = max(1, (_TINY_NUM_TOKENS if bench.is_tiny else _NUM_TOKENS) // case.seqlen)
    rule = AttentionRule(case.is_causal, case.head_dim**-0.5)
    make = partial(sample_of, case, num_seqs, bench.clock.device)
    first = make(1)
    yield Figure("error", _error(attend(first, rule), first, rule), "", "against float64")
    num_bytes = 2 * num_seqs * case.seqlen * (case.num_heads + case.num_kv_heads) * 2 * case.head_dim
    calls = rotation(lambda seed: partial(attend, make(seed), rule), num_bytes=num_bytes, clock=bench.clock)
    flop = 4 * num_seqs * case.seqlen**2 * case.num_heads * case.head_dim / (2 if case.is_causal else 1)
    for where in wheres:
        seconds = median_seconds(bench.clock, calls, seconds=bench.sized(_SECONDS, 0.0), in_graph=where == IN_GRAPH)
        yield Figure(f"rate {where}", flop / seconds / 1e12, "TFLOP/s")


def sample_of(case: Case, num_seqs: int, device: torch.device, seed: int) -> Sample:
    """So many sequences."""
    cu_seqlens = np.arange(num_seqs + 1, dtype=np.int32) * np.int32(case.seqlen)
    parts = [case.num_heads, case.num_kv_heads, case.num_kv_heads]
    generator = torch.Generator(device).manual_seed(seed)
    shape = (int(cu_seqlens[-1]), sum(parts), case.head_dim)
    rows = torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=device)
    block = choose_block(cu_seqlens)
    tiles = Tiles(torch.from_numpy(tile_table(cu_seqlens, block=block)).to(device), block)
    query, key, value = torch.split(rows, parts, dim=1)
    return Sample(query, key, value, torch.from_numpy(cu_seqlens).to(device), tiles, case.seqlen)


def _error(rows: Tensor, sample: Sample, rule: AttentionRule) -> float:
    """Of the first sequence and two heads: norm(rows - exact) / norm(exact)."""
    num_heads, seqlen = sample.query.shape[1], sample.seqlen
    groups, heads = num_heads // sample.key.shape[1], [0, num_heads - 1]
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
