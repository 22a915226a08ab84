"""Where the time of one forward goes: microseconds of each op a layer, beside those of the first H100.

Each op and each product stands between two events. Before the forward the device computes the same as a graph, so that
the host runs ahead, what lies between two events is the op alone, and clocks are those of a full load. The graph is
timed between two such forwards, so what it has more than the ops are gaps, and no difference of clocks. The kernels of
a graph, by name, come from torch's profiler. Two sums with norms a layer are one figure.
"""

import collections
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Clock, median_seconds
from benchmarks.gpu.fused_models import FusedModel, Subject
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.targets import FIRST_US
from engine.fused.model.forwards import Weights
from engine.fused.model.linear import Linear
from engine.fused.model.ops import Ops

KIND = "profile"
_NUM_TOKENS, _SEQLEN = 8192, 512
_TINY_NUM_TOKENS, _TINY_SEQLEN = 32, 8
_SECONDS = 1.5  # medians of as many forwards as it holds count
_AHEAD_SECONDS, _MAX_AHEAD = 0.05, 200  # of graphs before the ops, for the host to launch them meanwhile
_GRAPH = "graph"
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


def ops(bench: Bench, subject: Subject) -> None:
    """By events around each."""
    _measure(bench, subject, "ops", _ops)


def kernels(bench: Bench, subject: Subject) -> None:
    """Those behind the ops."""
    _measure(bench, subject, "kernels", _kernels)


def _measure(bench: Bench, subject: Subject, what: str, work: Callable[..., Iterator[Figure]]) -> None:
    sizes = (_TINY_NUM_TOKENS, _TINY_SEQLEN) if bench.is_tiny else (_NUM_TOKENS, _SEQLEN)
    key = Key(KIND, subject.shape.name, subject.way, f"T={sizes[0]} S={sizes[1]} {what}")
    bench.measure(key, partial(work, bench, subject, *sizes))


def _ops(bench: Bench, subject: Subject, num_tokens: int, seqlen: int) -> Iterator[Figure]:
    fused, num_layers = subject.fused, subject.shape.num_layers
    batch = batch_of(subject.shape, [seqlen] * (num_tokens // seqlen))
    marks = Marks(bench.clock)
    block, shape = fused.packed(batch)
    timed, graph = fused.compute_by(*_timed(fused, marks)), bench.clock.graph(fused.call(batch))
    ahead = min(_MAX_AHEAD, 1 + round(_AHEAD_SECONDS / median_seconds(bench.clock, [graph], seconds=0.0)))
    found: dict[str, list[float]] = collections.defaultdict(list)

    @torch.inference_mode()
    def once() -> dict[str, float]:
        for _ in range(ahead):
            graph()
        timed(block, shape)
        marks.timed(_GRAPH, graph)()
        return marks.seconds()

    once()  # compiles
    began = time.perf_counter()
    while not found or time.perf_counter() < began + bench.sized(_SECONDS, 0.0):
        for name, seconds in once().items():
            found[name].append(1e6 * seconds / num_layers)
    load, known = bench.clock.load(began), FIRST_US.get((subject.shape.name, subject.way), {})
    forward = statistics.median(found.pop(_GRAPH))
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name, microseconds in medians.items():
        note = f"{known[name]} on the first H100" if name in known and not bench.is_tiny else ""
        yield Figure(name, microseconds, "us a layer", note)
    yield Figure("all ops", sum(medians.values()), "us a layer")
    yield Figure("forward", forward, "us a layer", "as a graph, in between; what it has more is gaps")
    if load is not None:
        yield Figure("SM clock", load.sm_mhz, "MHz", f"of both: {load}")


def _timed(fused: FusedModel, marks: Marks) -> tuple[Ops, Weights]:
    linears: dict[str, Linear] = {
        name: TimedLinear(linear, name.rpartition(".")[2], marks) for name, linear in fused.weights.linears.items()
    }
    return cast(Ops, TimedOps(fused.ops, marks)), Weights(fused.weights.tensors, linears)


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
