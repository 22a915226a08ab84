"""Mixed lengths through the whole fused engine: packing, copies there and back, two batches in it; no server.

Lengths are log-normal around 128 tokens. Batches are packed in the order in which texts come. What the device is idle
is what is left of the time when the stretches between a batch's first and last work on its stream are taken off.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Call
from benchmarks.gpu.engines import TimedDevice, engine_of
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.other_models import SentenceTransformers
from benchmarks.gpu.random_models import NUM_SPECIAL, batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.targets import SENTENCE_TRANSFORMERS
from benchmarks.gpu.throughput import note_ratios
from embedline.bench.load import percentile
from engine.fused.cuda_device import on_recorder
from engine.types import Batch, Engine, EngineError, OutputKind

KIND, LENGTHS = "mixed", "log-normal"
_MEDIAN, _SIGMA, _LEAST, _MOST = 128, 0.8, 8, 2048
_NUM_TEXTS, _TINY_NUM_TEXTS = 2048, 24
_NUM_TEXTS_OF_OTHERS = 512
_BATCH_SIZES = (32, 128)  # of sentence-transformers: its default, and one that suits a GPU better; the faster counts
_MAX_NUM_TOKENS, _TINY_MAX_NUM_TOKENS = 16_384, 256
_SECONDS = 4.0
_ALONE_SEQLEN, _NUM_ALONE, _TINY_NUM_ALONE = 32, 500, 5

Sequences = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Ran:
    """What came back within the time."""

    num_tokens: int
    seconds: float
    idle_share: float | None  # None where the device doesn't tell


def run(bench: Bench, subject: Subject) -> None:
    """sentence-transformers, or ours."""
    shape, way = subject.shape, subject.way
    texts = sequences_of(shape, num=_TINY_NUM_TEXTS if bench.is_tiny else _NUM_TEXTS)
    is_ours = way != SENTENCE_TRANSFORMERS
    work = (
        partial(_engine, bench, subject, texts) if is_ours else partial(_library, subject, texts[:_NUM_TEXTS_OF_OTHERS])
    )
    bench.measure(Key(KIND, shape.name, way, LENGTHS), work)
    note_ratios(bench, KIND, shape, LENGTHS)


def sequences_of(shape: Shape, *, num: int) -> list[list[int]]:
    """Random ids in texts of log-normal lengths, the same each time."""
    generator = np.random.default_rng(seed=0)
    most = min(_MOST, shape.max_seqlen)
    lengths = np.clip(_MEDIAN * generator.lognormal(0.0, _SIGMA, num), _LEAST, most).astype(int)
    return [generator.integers(NUM_SPECIAL, shape.vocab_size, length).tolist() for length in lengths]


def _library(subject: Subject, texts: Sequences) -> Iterator[Figure]:
    num_tokens, rates = sum(map(len, texts)), []
    for batch_size in _BATCH_SIZES:
        library = SentenceTransformers(subject.model, batch_size=batch_size)
        call = library.call(texts)
        warm_up = _timed(call)
        seconds = min(_timed(call) for _ in range(1 if warm_up > _SECONDS else 3))
        rates.append(num_tokens / seconds)
        yield Figure(f"rate in batches of {batch_size}", rates[-1], "tokens/s", "tokenizing included")
    yield Figure("rate", max(rates), "tokens/s")


def _timed(call: Call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _engine(bench: Bench, subject: Subject, texts: Sequences) -> Iterator[Figure]:
    most = _TINY_MAX_NUM_TOKENS if bench.is_tiny else _MAX_NUM_TOKENS
    with TemporaryDirectory() as folder:
        engine, device = engine_of(subject.model, subject.fused, Path(folder), max_num_tokens=most)
    batches = packed(texts, max_num_tokens=most)
    query, num_alone = batch_of(subject.shape, [_ALONE_SEQLEN]), _TINY_NUM_ALONE if bench.is_tiny else _NUM_ALONE
    warm_up(engine, [*batches, batches[-1], query, query])  # the last batch may be the only one of its shape
    ran = drive(engine, batches, seconds=bench.sized(_SECONDS, 0.02), device=device)
    lone = sorted(alone(engine, query) for _ in range(num_alone))
    engine.close()
    yield Figure("rate", ran.num_tokens / ran.seconds, "tokens/s")
    if ran.idle_share is not None:
        yield Figure("device idle", ran.idle_share, "")
    yield Figure("lone query p50", 1e3 * percentile(lone, 50), "ms", f"of {_ALONE_SEQLEN} tokens, copies included")
    yield Figure("lone query p99", 1e3 * percentile(lone, 99), "ms")


def warm_up(engine: Engine, batches: Sequence[Batch]) -> None:
    """A shape is recorded when it comes again, beside what is computed: wait for that after each batch."""
    for batch in batches:
        alone(engine, batch)
        on_recorder(int)


def alone(engine: Engine, batch: Batch) -> float:
    """Seconds from submitting to having collected one batch in an idle engine."""
    began = time.perf_counter()
    engine.submit(batch)
    _, results = engine.collect()
    if isinstance(results, EngineError):
        raise results
    return time.perf_counter() - began


def packed(texts: Sequences, *, max_num_tokens: int) -> list[Batch]:
    """In their order, as many in a batch as fit."""
    groups: list[list[Sequence[int]]] = [[]]
    for text in texts:
        if sum(map(len, groups[-1])) + len(text) > max_num_tokens and groups[-1]:
            groups.append([])
        groups[-1].append(text)
    return [_batch(group) for group in groups]


def _batch(group: Sequences) -> Batch:
    cu_seqlens = np.cumsum([0, *map(len, group)], dtype=np.int32)
    return Batch("m", OutputKind.POOLED, np.concatenate(group).astype(np.int32), cu_seqlens)


def drive(engine: Engine, batches: Sequence[Batch], *, seconds: float, device: TimedDevice | None = None) -> Ran:
    """Submit batches in turn from one thread and collect in another, each at least once and for at least so long."""
    submitted: list[Batch] = []
    news = threading.Semaphore(0)  # counts what was submitted, and one more when nothing follows
    is_over = threading.Event()
    if device is not None:
        device.reset()
    began = time.perf_counter()

    def submit() -> None:
        while len(submitted) < len(batches) or time.perf_counter() < began + seconds:
            engine.submit(batches[len(submitted) % len(batches)])
            submitted.append(batches[len(submitted) % len(batches)])
            news.release()
        is_over.set()
        news.release()

    submitter = threading.Thread(target=submit, daemon=True)  # nobody collects for it where a batch fails
    submitter.start()
    num_collected = 0
    while news.acquire() and not (is_over.is_set() and num_collected == len(submitted)):
        _, results = engine.collect()
        if isinstance(results, EngineError):
            raise results
        num_collected += 1
    submitter.join()
    took = time.perf_counter() - began
    idle = None if device is None else max(0.0, 1 - device.busy_seconds() / took)
    return Ran(sum(batch.num_tokens for batch in submitted), took, idle)
