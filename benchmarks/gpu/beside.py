"""Queries beside bulk through the whole fused engine, as the server feeds it; no server.

Bulk batches are sealed as large as the server seals them while queries are about, and give way. Queries come one by one
at a rate, whether or not the last one has been answered, so one that is answered late counts from when it came.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.gpu import mixed
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engines import engine_of
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import Shape
from embedline.bench.load import percentile
from engine.types import Batch, Engine, EngineError, EngineLimits

KIND = "beside bulk"
_MAX_NUM_TOKENS, _TINY_MAX_NUM_TOKENS = 16_384, 128
_MIN_NUM_TOKENS = 256  # that the server seals
_BULK_SEQLEN, _TINY_BULK_SEQLEN, _QUERY_SEQLEN = 128, 16, 32
_PER_SECOND = 50.0  # queries, Poisson
_SECONDS = 4.0


@dataclass(slots=True)
class Traffic:
    """What one thread submits and another collects."""

    bulk: Batch
    query: Batch
    seconds: float
    due: dict[int, float] = field(default_factory=dict)  # when each query came, by ticket
    done: dict[int, float] = field(default_factory=dict)  # when each batch was answered
    changed: threading.Condition = field(default_factory=threading.Condition)
    num_submitted: int = 0
    is_over: bool = False

    def submit(self, engine: Engine) -> None:
        """Bulk whenever the engine has room for it, each query when it comes."""
        gaps = np.random.default_rng(seed=0).exponential(1 / _PER_SECOND, 10_000).tolist()
        now = time.perf_counter()
        due, end = now, now + self.seconds
        while now < end:
            if now >= due:
                self._note(engine.submit(self.query), due=due)
                due += gaps.pop()
            elif self._has_room(engine, seconds=due - now):
                self._note(engine.submit(self.bulk))
            now = time.perf_counter()
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def collect(self, engine: Engine) -> None:
        """Until all that was submitted is answered. Raises EngineError."""
        while self._is_anything_left():
            ticket, results = engine.collect()
            now = time.perf_counter()
            if isinstance(results, EngineError):
                raise results
            with self.changed:
                self.done[ticket] = now
                self.changed.notify_all()

    @property
    def num_bulk(self) -> int:
        """Batches."""
        return self.num_submitted - len(self.due)

    def _note(self, ticket: int, due: float | None = None) -> None:
        with self.changed:
            self.num_submitted += 1
            if due is not None:
                self.due[ticket] = due
            self.changed.notify_all()

    def _has_room(self, engine: Engine, *, seconds: float) -> bool:
        """Within so many seconds; otherwise submitting would keep a query waiting."""

        def has_room() -> bool:
            num_queries = len(self.due.keys() - self.done.keys())
            return self.num_submitted - len(self.done) - num_queries < engine.limits.depth

        with self.changed:
            return self.changed.wait_for(has_room, timeout=seconds)

    def _is_anything_left(self) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.num_submitted > len(self.done) or self.is_over)
            return self.num_submitted > len(self.done)


def run(bench: Bench, subject: Subject) -> None:
    """Where it is known how fast the engine is."""
    shape, way = subject.shape, subject.way
    rate = bench.rows.value(Key("model", shape.name, way, f"S={8 if bench.is_tiny else 512}"), "rate")
    if rate is not None:
        bulk = _TINY_BULK_SEQLEN if bench.is_tiny else _BULK_SEQLEN
        key = Key(KIND, shape.name, way, f"bulk S={bulk}, queries S={_QUERY_SEQLEN}")
        bench.measure(key, partial(_measure, bench, subject, rate))


def sealed(limits: EngineLimits, rate: float, seconds: float) -> int:
    """Tokens of a batch that the server closes for an engine of this rate: what it computes in so many seconds."""
    most = min(limits.max_num_tokens, max(_MIN_NUM_TOKENS, int(rate * seconds)))
    return max((bucket for bucket in limits.token_buckets if bucket <= most), default=most)


def _measure(bench: Bench, subject: Subject, rate: float) -> Iterator[Figure]:
    most = _TINY_MAX_NUM_TOKENS if bench.is_tiny else _MAX_NUM_TOKENS
    with TemporaryDirectory() as folder:
        engine, _ = engine_of(subject.model, subject.fused, Path(folder), max_num_tokens=most)
    limits, seqlen = engine.limits, _TINY_BULK_SEQLEN if bench.is_tiny else _BULK_SEQLEN
    alone = _bulk(subject.shape, seqlen, sealed(limits, rate, limits.max_batch_seconds))
    beside = replace(_bulk(subject.shape, seqlen, sealed(limits, rate, limits.max_batch_seconds_mixed)), gives_way=True)
    query = replace(batch_of(subject.shape, [_QUERY_SEQLEN]), is_urgent=True)
    mixed.warm_up(engine, [alone, alone, beside, beside, query, query])
    seconds = bench.sized(_SECONDS, 0.2)
    ran = mixed.drive(engine, [alone], seconds=seconds / 2)
    rate_alone = ran.num_tokens / ran.seconds
    yield Figure("bulk rate alone", rate_alone, "tokens/s", f"T={alone.num_tokens}")
    traffic = Traffic(beside, query, seconds)
    took = _run(engine, traffic)
    engine.close()
    kept = traffic.num_bulk * beside.num_tokens / took
    yield Figure("bulk rate", kept, "tokens/s", f"T={beside.num_tokens}")
    yield Figure("share of bulk kept", kept / rate_alone, "")
    waits = sorted(traffic.done[ticket] - due for ticket, due in traffic.due.items())
    yield Figure("query p50", 1e3 * percentile(waits, 50), "ms")
    yield Figure("query p99", 1e3 * percentile(waits, 99), "ms", f"{len(waits)} queries, {_PER_SECOND:.0f} a second")


def _bulk(shape: Shape, seqlen: int, num_tokens: int) -> Batch:
    """As many whole texts as fit."""
    return batch_of(shape, [seqlen] * max(1, num_tokens // seqlen))


def _run(engine: Engine, traffic: Traffic) -> float:
    """Seconds in all."""
    began = time.perf_counter()
    submitter = threading.Thread(target=traffic.submit, args=(engine,), daemon=True)  # left alone where a batch fails
    submitter.start()
    traffic.collect(engine)
    submitter.join()
    return time.perf_counter() - began
