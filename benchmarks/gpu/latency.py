"""One query of 32 tokens on an idle device: replays of its graph, one after the other, each timed by itself."""

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.subject import Subject
from benchmarks.gpu.targets import BF16, FP8
from embedline.bench.summary import percentile

KIND = "latency"
_SEQLEN = 32
_NUM_REPLAYS, _TINY_NUM_REPLAYS = 500, 5
_NUM_SKIPPED = 20


def run(bench: Bench, subject: Subject) -> None:
    """At both precisions."""
    for way in (BF16, FP8):
        key = Key(KIND, subject.shape.name, way, f"B=1 S={_SEQLEN}")
        bench.measure(key, partial(_replays, bench, subject, way))


def _replays(bench: Bench, subject: Subject, way: str) -> Iterator[Figure]:
    fused = subject.fused(way)
    replay = bench.clock.graph(fused.call(batch_of(fused.shape, [_SEQLEN])))
    bench.clock.sample(replay, num=_TINY_NUM_REPLAYS if bench.is_tiny else _NUM_SKIPPED)
    times = sorted(bench.clock.sample(replay, num=_TINY_NUM_REPLAYS if bench.is_tiny else _NUM_REPLAYS))
    p50, p99 = percentile(times, 50), percentile(times, 99)
    yield Figure("p50", 1e3 * p50, "ms")
    yield Figure("p99", 1e3 * p99, "ms")
    yield Figure("p99 / p50", p99 / p50, "")
