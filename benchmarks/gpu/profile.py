"""Where the time of one forward goes: microseconds of each op a layer, beside what was predicted.

Each op and each product stands between two events. Before the forward the device is kept busy, so that the host runs
ahead, and what lies between two events is the op alone. Attention is that of calls one by one, which is not always that
of graphs. The kernels of a graph, by name, come from torch's profiler. Two sums with norms a layer are one figure.
"""

import collections
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Clock, median_seconds
from benchmarks.gpu.fused_models import FusedModel, Parts, Subject
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import QWEN3_8B
from benchmarks.gpu.targets import FP8, PREDICTED_US
from engine.fused.model.blocks import Weights
from engine.fused.model.linear import Linear
from engine.fused.model.ops import Ops

KIND = "profile"
_NUM_TOKENS, _SEQLEN = 8192, 512
_TINY_NUM_TOKENS, _TINY_SEQLEN = 32, 8
_NUM_FORWARDS = 3  # the median counts
_AHEAD_CYCLES = 100_000_000  # of the device's clock, about 50 ms
_NUM_KERNELS = 12


@dataclass(slots=True)
class Marks:
    """What was called, and the times before and after."""

    clock: Clock
    marks: list[tuple[str, Any, Any]] = field(default_factory=list)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, noted by this name."""

        def noted(*arguments: Any, **options: Any) -> Any:
            before = self.clock.mark()
            result = call(*arguments, **options)
            self.marks.append((name, before, self.clock.mark()))
            return result

        return noted

    def seconds(self) -> dict[str, float]:
        """By name, of all calls so far, which are forgotten."""
        self.clock.synchronize()
        total: dict[str, float] = collections.defaultdict(float)
        for name, before, after in self.marks:
            total[name] += self.clock.between(before, after)
        self.marks.clear()
        return dict(total)


class TimedOps:
    """Ops, each noted by its name."""

    def __init__(self, ops: Ops, marks: Marks) -> None:
        self._ops = ops
        self._marks = marks

    def __getattr__(self, name: str) -> Any:
        return self._marks.timed(name, getattr(self._ops, name))


@dataclass(frozen=True, slots=True)
class TimedLinear:
    """A product, noted by its name. See engine.fused.model.linear.Linear."""

    linear: Linear
    name: str
    marks: Marks

    @property
    def is_quantized(self) -> bool:
        """See Linear."""
        return self.linear.is_quantized

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """See Linear."""
        return self.linear.tensors

    def __call__(self, rows: Any) -> torch.Tensor:
        """See Linear."""
        return cast(torch.Tensor, self.marks.timed(self.name, self.linear)(rows))

    def part(self, start: int, end: int) -> Linear:
        """See Linear."""
        return replace(self, linear=self.linear.part(start, end))


def run(bench: Bench, subject: Subject) -> None:
    """Ops, then the kernels behind them."""
    sizes = (_TINY_NUM_TOKENS, _TINY_SEQLEN) if bench.is_tiny else (_NUM_TOKENS, _SEQLEN)
    shape = f"T={sizes[0]} S={sizes[1]}"
    for what, work in ((f"{shape} ops", _ops), (f"{shape} kernels", _kernels)):
        bench.measure(Key(KIND, subject.shape.name, subject.way, what), partial(work, bench, subject, *sizes))


def _ops(bench: Bench, subject: Subject, num_tokens: int, seqlen: int) -> Iterator[Figure]:
    fused, num_layers = subject.fused, subject.shape.num_layers
    batch = batch_of(subject.shape, [seqlen] * (num_tokens // seqlen))
    marks = Marks(bench.clock)
    block, shape = fused.packed(batch)
    compute = fused.compute_by(_timed(fused, marks))
    found: dict[str, list[float]] = collections.defaultdict(list)
    for number in range(1 + _NUM_FORWARDS):
        bench.clock.keep_busy(_AHEAD_CYCLES)
        with torch.inference_mode():
            compute(block, shape)
        for name, seconds in marks.seconds().items():
            if number:  # the first compiles
                found[name].append(seconds)
    is_predicted = (subject.shape, subject.way, num_tokens) == (QWEN3_8B, FP8, _NUM_TOKENS)
    total = 0.0
    for name, times in found.items():
        microseconds = 1e6 * sorted(times)[len(times) // 2]
        total += microseconds
        predicted = PREDICTED_US.get(name) if is_predicted else None
        notes = ["" if predicted is None else f"predicted {predicted:.0f}", fused.note if name == "attend" else ""]
        note = "; ".join(filter(None, notes))
        yield Figure(name, microseconds / num_layers, "us a layer", note)
    forward = median_seconds(bench.clock, [bench.clock.graph(fused.call(batch))], seconds=0.0)
    yield Figure("all ops", total / num_layers, "us a layer")
    yield Figure("forward", 1e6 * forward / num_layers, "us a layer", "as a graph; what it has more is gaps")


def _timed(fused: FusedModel, marks: Marks) -> Parts:
    """Only products and ops: where attention is not an op, it is noted as if it were."""
    linears: dict[str, Linear] = {
        name: TimedLinear(linear, name.rpartition(".")[2], marks) for name, linear in fused.weights.linears.items()
    }
    attend = None if fused.attend is None else marks.timed("attend", fused.attend)
    return Parts(cast(Ops, TimedOps(fused.ops, marks)), Weights(fused.weights.tensors, linears), attend)


def _kernels(bench: Bench, subject: Subject, num_tokens: int, seqlen: int) -> Iterator[Figure]:
    """The longest, by torch's profiler, of one forward as a graph."""
    call = bench.clock.graph(subject.fused.call(batch_of(subject.shape, [seqlen] * (num_tokens // seqlen))))
    call()
    bench.clock.synchronize()
    activity = ProfilerActivity.CUDA if bench.clock.is_gpu else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as profiled:
        call()
        bench.clock.synchronize()
    name = "self_device_time_total" if bench.clock.is_gpu else "self_cpu_time_total"
    events = sorted(profiled.key_averages(), key=lambda event: -float(getattr(event, name)))
    for event in events[:_NUM_KERNELS]:
        microseconds = float(getattr(event, name))
        if microseconds > 0:
            yield Figure(event.key[:100], microseconds, "us", f"{event.count} times")
