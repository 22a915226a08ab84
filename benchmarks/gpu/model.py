"""Models, one after the other: of each the length that matters most, its profile, then the rest as time allows."""

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks.gpu import beside, ceilings, mixed, profile, shared_prefixes, throughput
from benchmarks.gpu.bench import Bench, TimeUp
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.targets import BF16, COMPILED, FP8, GRAPH, PRODUCT_OF, TRANSFORMERS
from embedline.bench.load import percentile

_FLOOR = 12.0  # seconds, of a model; with less left it is left to the run that goes on
_QUERY = 32  # tokens
_NUM_REPLAYS, _TINY_NUM_REPLAYS, _NUM_SKIPPED = 500, 5, 20
_PADDED_SEQLENS = (5, 17, 1, 33, 9)  # not a multiple of anything, so the batch is padded


def run_all(bench: Bench, asked: Sequence[tuple[Shape, str]]) -> None:
    """In their order, in this process: each has its share of what is left, and no less than is worth beginning."""
    end, others = bench.deadline, [weight(way) for _, way in asked]
    for shape, way in asked:
        left, share = end - time.monotonic(), others[0] / sum(others)
        del others[0]
        if left < _FLOOR:
            raise TimeUp
        bench.deadline = time.monotonic() + min(left, max(_FLOOR, left * share))
        with contextlib.suppress(TimeUp):
            _run(bench, Subject(shape, way, bench.clock.device))
        gc.collect()  # graphs and engines know each other
        bench.release()


def weight(way: str) -> float:
    """The share of a model's time beside those of others."""
    return {FP8: 1.3, BF16: 1.0, COMPILED: 1.0}.get(way, 0.5)


def _run(bench: Bench, subject: Subject) -> None:
    """What has a target comes first."""
    shape, way = subject.shape, subject.way
    first, *others = throughput.seqlens_for(shape, way, is_tiny=bench.is_tiny)
    ceilings.again(bench, PRODUCT_OF[way])
    throughput.run(bench, subject, first)
    if way in (BF16, FP8):
        bench.measure(Key("latency", shape.name, way, f"B=1 S={_QUERY}"), partial(_lone_query, bench, subject))
        profile.ops(bench, subject)
        beside.run(bench, subject)
        bench.measure(Key("padding", shape.name, way, "NaN"), partial(_changed_by_padding, subject))
        shared_prefixes.run(bench, subject)
    if way == FP8:
        bench.measure(Key("probe of products", shape.name, way), partial(_probed, subject))
    throughput.compare(bench, subject)
    for seqlen in others:
        throughput.run(bench, subject, seqlen)
    if way not in (TRANSFORMERS, GRAPH, COMPILED):
        mixed.run(bench, subject)
    if way in (BF16, FP8):
        profile.kernels(bench, subject)


def _probed(subject: Subject) -> Iterator[Figure]:
    yield Figure("time", subject.fused.probe_seconds, "s", subject.fused.slower_products)


def _lone_query(bench: Bench, subject: Subject) -> Iterator[Figure]:
    """On an idle device: replays of its graph, one after the other, each timed by itself."""
    replay = bench.clock.graph(subject.fused.call(batch_of(subject.shape, [_QUERY])))
    bench.clock.sample(replay, num=_TINY_NUM_REPLAYS if bench.is_tiny else _NUM_SKIPPED)
    times = sorted(bench.clock.sample(replay, num=_TINY_NUM_REPLAYS if bench.is_tiny else _NUM_REPLAYS))
    p50, p99 = percentile(times, 50), percentile(times, 99)
    yield Figure("p50", 1e3 * p50, "ms")
    yield Figure("p99", 1e3 * p99, "ms")
    yield Figure("p99 / p50", p99 / p50, "")


def _changed_by_padding(subject: Subject) -> Iterator[Figure]:
    """Token 0, which padding is made of, gets an embedding of NaN."""
    fused = subject.fused
    batch = batch_of(fused.shape, _PADDED_SEQLENS)
    _, shape = fused.packed(batch)
    assert shape.num_tokens > batch.num_tokens
    before = fused.rows(batch)
    words = fused.weights.tensors["words"]
    of_padding = words[0].clone()
    words[0] = torch.nan
    after = fused.rows(batch)
    words[0] = of_padding
    changed = (before != after).any(dim=1).sum().item()  # NaN is unlike itself, so a row of it counts
    yield Figure("changed rows", changed, "", f"of {batch.num_seqs}, beside {shape.num_tokens - batch.num_tokens} rows")
