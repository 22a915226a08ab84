"""Times attention kernels on the GPU at load, and rejects those that fail or are wrong there. Chooses nothing.

A sample is a batch at its worst: sequences of one length, a shorter one, empty ones, and rows of padding that are NaN.
PyTorch's private operators and cuDNN's plans are trusted only as far as they compute this sample correctly.

Shapes: T tokens with padding, N query heads, H key heads, D numbers a head.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.attention.choice import Candidate
from engine.fused.model.ops import AttentionRule, Inputs, Ops, Tiles
from engine.fused.model.spec import Spec
from engine.fused.runner.packing import choose_block, tile_table

_NUM_TOKENS = 16384  # about a full batch
_NUM_PADDING = 64  # rows
_NUM_EMPTY = 2  # sequences
_NUM_CALLS, _NUM_RUNS = 4, 2
_TOLERANCE = 0.03  # of rows about 1, in numbers of 16 bits


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch's queries, keys and values, as views of one tensor."""

    query: Tensor  # [T, N, D]
    key: Tensor  # [T, H, D]
    value: Tensor  # [T, H, D]
    inputs: Inputs
    num_tokens: int  # without padding


class GpuTiming:
    """An engine.fused.attention.choice.Measure, for one model on the current GPU."""

    def __init__(self, spec: Spec, ops: Ops, dtype: torch.dtype, device: torch.device, *, is_recorded: bool) -> None:
        """is_recorded: large batches run as CUDA graphs, so what calls cost the host does not count."""
        self._spec = spec
        self._ops = ops
        self._dtype = dtype
        self._device = device
        self._is_recorded = is_recorded
        self._num_layers = Counter(layer.window for layer in spec.layers)

    @torch.inference_mode()
    def __call__(self, candidate: Candidate, seqlen: int) -> float:
        """Seconds in all layers, for about a full batch of sequences of this length."""
        sample = sample_of(self._spec, seqlen, dtype=self._dtype, device=self._device)
        try:
            return sum(number * self._seconds(candidate, sample, window) for window, number in self._num_layers.items())
        except RuntimeError:  # whatever the operator says, we can do without it
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # raises where the GPU itself is lost
            return math.inf

    def _seconds(self, candidate: Candidate, sample: Sample, window: int | None) -> float:
        rule = AttentionRule(self._spec.is_causal, self._spec.scaling, window, self._spec.softcap)

        def by_tiles() -> Tensor:
            return self._ops.attend(sample.query, sample.key, sample.value, sample.inputs.tiles, rule)

        def by_other() -> Tensor:
            assert candidate.attend is not None
            return candidate.attend(sample.query, sample.key, sample.value, sample.inputs, rule)

        expected = by_tiles()
        if candidate.attend is None:
            return seconds_of(by_tiles, is_recorded=self._is_recorded)
        if not agree(by_other(), expected, sample):
            return math.inf
        return seconds_of(by_other, is_recorded=self._is_recorded)


def sample_of(spec: Spec, seqlen: int, *, dtype: torch.dtype, device: torch.device) -> Sample:
    """About 16,384 tokens, the same each time."""
    num_whole = max(1, _NUM_TOKENS // seqlen - 1)
    lengths = [seqlen] * num_whole + [(seqlen + 1) // 2] + [0] * _NUM_EMPTY
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    num_tokens = int(cu_seqlens[-1])
    shape = (num_tokens + _NUM_PADDING, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
    rows = torch.randn(shape, generator=torch.Generator(device).manual_seed(0), dtype=dtype, device=device)
    rows[num_tokens:] = torch.nan
    query, key, value = torch.split(rows, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
    return Sample(query, key, value, inputs_of(cu_seqlens, device=device), num_tokens)


def inputs_of(cu_seqlens: NDArray[np.int32], *, device: torch.device) -> Inputs:
    """As much of a batch as attention asks for, of sequences with these bounds [B + 1]."""
    block = choose_block(cu_seqlens)
    tiles = Tiles(torch.from_numpy(tile_table(cu_seqlens, block=block)).to(device), block)
    bounds = torch.from_numpy(cu_seqlens).to(device)
    return Inputs(
        token_ids=bounds,  # attention reads neither these nor positions
        positions=bounds,
        token_type_ids=None,
        cu_seqlens=bounds,
        pooled=bounds,
        tiles=tiles,
        pooled_tiles=tiles,
        max_seqlen=int(np.diff(cu_seqlens).max()),
    )


def agree(rows: Tensor, expected: Tensor, sample: Sample) -> bool:
    """Whether rows of tokens are about the same; NaN is like nothing."""
    count = sample.num_tokens
    return torch.allclose(rows[:count].float(), expected[:count].float(), rtol=_TOLERANCE, atol=_TOLERANCE)


def seconds_of(work: Callable[[], object], *, is_recorded: bool) -> float:
    """The GPU's time for one call, waiting for the host included unless recorded: the best of some runs. Whatever is
    to be compiled or loaded must be.

    Raises RuntimeError where it can't be recorded.
    """
    call = _recorded(work) if is_recorded else work
    call()
    return min(_timed(call) for _ in range(_NUM_RUNS)) / _NUM_CALLS


def _recorded(work: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    here = torch.cuda.stream(torch.cuda.current_stream())  # put right again where recording fails
    with here, torch.cuda.graph(graph, capture_error_mode="relaxed"):
        work()
    return graph.replay


def _timed(call: Callable[[], object]) -> float:
    """Seconds for all calls of a run."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(_NUM_CALLS):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
