"""The fused engine's kernels other than attention: bytes a second, and error against the same op in float32.

The one that multiplies by the vocabulary's matrix is bound by the product, so its operations a second are told, too.
Bytes are those that have to be read or written once; weights of norms and positions, which stay in the cache, are left
out. For quantized rows the error is that of the rows that they stand for, so it is the format's own, 0.026, at best.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import median_seconds, rotation
from benchmarks.gpu.fused_models import ops_for
from benchmarks.gpu.kernel_cases import Case, Result, cases
from benchmarks.gpu.rows import Figure, Key
from engine.fused.model.ops import QuantizedRows, RaggedRows
from engine.fused.model.reference import ReferenceOps

KIND = "kernel"
_NUM_TOKENS, _TINY_NUM_TOKENS = 16_384, 32
_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Float32:
    """The meaning of an op, of the same inputs in float32."""

    case: Case

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensor:
        upcast = tuple(one.float() if one.is_floating_point() else one for one in inputs)
        return _plain(self.case, self.case.call(ReferenceOps(), upcast))


def run(bench: Bench) -> None:
    """Every kernel at the widths of the models."""
    num_tokens = _TINY_NUM_TOKENS if bench.is_tiny else _NUM_TOKENS
    for case in cases(is_tiny=bench.is_tiny):
        key = Key(KIND, case.name, "fp8 out" if case.is_quantized else "bf16", f"T={num_tokens} {case.width}")
        bench.measure(key, partial(_measure, bench, case, num_tokens))


def _measure(bench: Bench, case: Case, num_tokens: int) -> Iterator[Figure]:
    ops, device = ops_for(bench.clock.device), bench.clock.device

    def make(seed: int) -> Callable[[], object]:
        return partial(case.call, ops, case.inputs(num_tokens, device, seed))

    inputs = case.inputs(num_tokens, device, 0)
    expected = _Float32(case)(inputs)
    got = _plain(case, case.call(ops, inputs))
    yield Figure("error", float((got - expected).norm() / expected.norm()), "")
    num_bytes = round(num_tokens * case.bytes_per_token) + case.num_weight_bytes
    calls = rotation(make, num_bytes=num_bytes, clock=bench.clock)
    seconds = median_seconds(bench.clock, calls, seconds=bench.sized(_SECONDS, 0.0), in_graph=True)
    yield Figure("bandwidth", 1e-9 * num_bytes / seconds, "GB/s")
    if case.flop_per_token:
        yield Figure("rate", 1e-12 * num_tokens * case.flop_per_token / seconds, "TFLOP/s")
    yield Figure("time", 1e6 * seconds, "us")


def _plain(case: Case, result: Result) -> Tensor:
    """float32 rows: those that quantized ones stand for, and ragged ones with their zeros."""
    if isinstance(result, RaggedRows):
        counts = result.counts.long()
        row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        ids, weights = result.entries[: len(row)].unbind(1)
        rows = weights.new_zeros((len(counts), case.num_words))
        rows[row, ids.long()] = weights
        return rows
    if isinstance(result, QuantizedRows):
        return result.values.float() * result.scales
    return result.float()
