"""The fused engine's kernels other than attention: bytes a second, and error against the same op in float32.

Bytes are those that have to be read or written once; weights of norms and positions, which stay in the cache, are left
out. For quantized rows the error is that of the rows that they stand for, so it is the format's own, 0.026, at best.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import median_seconds, rotation
from benchmarks.gpu.fused_models import ops_for
from benchmarks.gpu.kernel_cases import Case, cases
from benchmarks.gpu.rows import Figure, Key
from engine.fused.model.ops import QuantizedRows
from engine.fused.model.reference import ReferenceOps

KIND = "kernel"
_NUM_TOKENS, _TINY_NUM_TOKENS = 16_384, 32
_SECONDS = 0.1

Result = Tensor | QuantizedRows


@dataclass(frozen=True, slots=True)
class _Float32:
    """The meaning of an op, of the same inputs in float32."""

    case: Case

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensor:
        upcast = tuple(one.float() if one.is_floating_point() else one for one in inputs)
        return _plain(self.case.call(ReferenceOps(), upcast))


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
    got = _plain(case.call(ops, inputs))
    yield Figure("error", float((got - expected).norm() / expected.norm()), "")
    num_bytes = round(num_tokens * case.bytes_per_token)
    calls = rotation(make, num_bytes=num_bytes, clock=bench.clock)
    seconds = median_seconds(bench.clock, calls, seconds=bench.sized(_SECONDS, 0.0), in_graph=True)
    yield Figure("bandwidth", 1e-9 * num_bytes / seconds, "GB/s")
    yield Figure("time", 1e6 * seconds, "us")


def _plain(result: Result) -> Tensor:
    """float32 rows, those that quantized ones stand for."""
    if isinstance(result, QuantizedRows):
        return result.values.float() * result.scales
    return result.float()
