"""Times attention kernels on the GPU at load, and rejects those that fail or are wrong there. Chooses nothing.

A sample is a batch at its worst: sequences of one length, a shorter one, empty ones, and rows of padding that are NaN.
PyTorch's private operators and cuDNN's plans are trusted only as far as they compute this sample correctly; earlier
versions of PyTorch took rows to be adjacent.

Shapes: T tokens with padding, N query heads, H key heads, D numbers a head.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.attention import NEVER, Candidate, Cost
from engine.fused.model.ops import AttentionRule, Inputs, Ops, Tiles
from engine.fused.model.spec import Spec
from engine.fused.runner.graphs import on_recorder, recorded
from engine.fused.runner.packing import choose_block, tile_table
from engine.machine.failures import one_line

_NUM_TOKENS = 16384  # about a full batch
_NUM_PADDING = 64  # rows
_NUM_EMPTY = 2  # sequences
_NUM_CALLS, _NUM_RUNS = 4, 2
_TOLERANCE = 0.03  # of rows about 1, in numbers of 16 bits

logger = logging.getLogger("embedline.engine")


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch's queries, keys and values, as views of one tensor."""

    query: Tensor  # [T, N, D]
    key: Tensor  # [T, H, D]
    value: Tensor  # [T, H, D]
    inputs: Inputs
    num_tokens: int  # without padding


class GpuTiming:
    """A Measure, for one model on one GPU."""

    def __init__(self, spec: Spec, ops: Ops, dtype: torch.dtype, device: torch.device) -> None:
        self._spec = spec
        self._ops = ops
        self._dtype = dtype
        self._device = device
        self._num_layers = Counter(layer.window for layer in spec.layers)
        self._host: dict[str, float] = {}  # seconds of a call, by candidate

    def __call__(self, candidate: Candidate, seqlen: int) -> Cost:
        """What it costs at this length; NEVER where it fails or is wrong."""
        return on_recorder(partial(self._cost, candidate, seqlen))

    @torch.inference_mode()
    def _cost(self, candidate: Candidate, seqlen: int) -> Cost:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        sample = sample_of(self._spec, seqlen, dtype=self._dtype, device=self._device)
        try:
            layers = self._num_layers.items()
            device = sum(number * self._seconds(candidate, sample, window) for window, number in layers)
        except Exception as error:  # whatever an operator or a compiler says, we can do without it
            self._synchronize()  # raises where the GPU itself is lost
            logger.info("attention by %s is left out for %d tokens: %s", candidate.name, seqlen, one_line(error))
            return NEVER
        return Cost(device, self._host[candidate.name]) if device < math.inf else NEVER

    def _seconds(self, candidate: Candidate, sample: Sample, window: int | None) -> float:
        """Of the GPU, for one layer."""
        rule = AttentionRule(self._spec.is_causal, self._spec.scaling, window, self._spec.softcap)
        rows = sample.query, sample.key, sample.value
        by_tiles = partial(self._ops.attend, *rows, sample.inputs.tiles, rule)
        call = by_tiles if candidate.attend is None else partial(candidate.attend, *rows, sample.inputs, rule)
        if not agree(call(), by_tiles(), sample):
            return math.inf
        if candidate.name not in self._host:  # whatever is to be compiled or loaded is by now
            self._synchronize()
            began = time.perf_counter()
            call()
            self._host[candidate.name] = time.perf_counter() - began
        return seconds_of(call)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def sample_of(spec: Spec, seqlen: int, *, dtype: torch.dtype, device: torch.device) -> Sample:
    """About 16,384 tokens, the same each time."""
    num_whole = max(1, _NUM_TOKENS // seqlen - 1)
    lengths = [seqlen] * num_whole + [(seqlen + 1) // 2] + [0] * _NUM_EMPTY
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return packed_sample(spec, cu_seqlens, seed=0, dtype=dtype, device=device)


def packed_sample(
    spec: Spec, cu_seqlens: NDArray[np.int32], *, seed: int, dtype: torch.dtype, device: torch.device
) -> Sample:
    """Sequences with these bounds [B + 1], and some rows of padding that are not numbers."""
    num_tokens = int(cu_seqlens[-1])
    shape = (num_tokens + _NUM_PADDING, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
    rows = torch.randn(shape, generator=torch.Generator(device).manual_seed(seed), dtype=dtype, device=device)
    rows[num_tokens:] = torch.nan
    query, key, value = torch.split(rows, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
    return Sample(query, key, value, _inputs_of(cu_seqlens, device=device), num_tokens)


def _inputs_of(cu_seqlens: NDArray[np.int32], *, device: torch.device) -> Inputs:
    """As much of a batch as attention asks for."""
    block = choose_block(cu_seqlens)
    tiles = Tiles(torch.from_numpy(tile_table(cu_seqlens, block=block)).to(device), block)
    bounds = torch.from_numpy(cu_seqlens).to(device)  # attention reads neither ids, positions nor what is pooled
    return Inputs(bounds, bounds, None, bounds, bounds, tiles, tiles, max_seqlen=int(np.diff(cu_seqlens).max()))


def agree(rows: Tensor, expected: Tensor, sample: Sample) -> bool:
    """Whether rows of tokens are about the same; NaN is like nothing."""
    count = sample.num_tokens
    return torch.allclose(rows[:count].float(), expected[:count].float(), rtol=_TOLERANCE, atol=_TOLERANCE)


def seconds_of(work: Callable[[], object]) -> float:
    """The GPU's time for one call: the best of some runs, replayed from a graph. Where none can be recorded the host's
    part counts. Whatever is to be compiled or loaded must be.
    """
    try:
        call = recorded(work).replay
    except RuntimeError:
        call = work  # type: ignore[assignment]
    call()
    return min(_timed(call) for _ in range(_NUM_RUNS)) / _NUM_CALLS


def _timed(call: Callable[[], object]) -> float:
    """Seconds for all calls of a run."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(_NUM_CALLS):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
