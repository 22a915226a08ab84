"""What is measured of one running server: how it bears bulk, queries, both at once, reranking, and a killed engine."""

import contextlib
import http.client
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import TOOK, Figure, Key
from benchmarks.gpu.server_loads import (
    RERANK_ROUTE,
    Bulk,
    Loads,
    Queries,
    Reranking,
    answered,
    batches_of,
    bulk_figures,
    failures,
    query_figures,
    texts_of,
)
from benchmarks.gpu.server_shares import BULK_RATE, KIND, TOKENS_A_BATCH, both_key, bulk_key
from benchmarks.gpu.server_start import engine_of
from benchmarks.gpu.shapes import Shape
from benchmarks.measuring.servers import RunningServer, ServerFailed
from embedline.bench.load import Phase, Summary, summarize

_NEXT_SECONDS = 5.0  # that a single text may take between loads; a server that needs more is given up
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What an embedding server is sent."""

    bulks: tuple[Bulk, ...]
    queries: Queries
    patience: float  # seconds that a request may take


class Embedding:
    """Bulk of each length, queries, and both together."""

    def __init__(self, shape: Shape, way: str, traffic: Traffic) -> None:
        self._shape = shape
        self.traffic = traffic
        self._queries = Key(KIND, shape.name, way, "interactive alone")
        self._bulks = {bulk: bulk_key(shape, way, bulk.seqlen) for bulk in traffic.bulks}
        self._boths = {bulk: both_key(shape, way, bulk.seqlen) for bulk in traffic.bulks}

    @property
    def keys(self) -> list[Key]:
        """Of all rows."""
        return [*self._bulks.values(), self._queries, *self._boths.values()]

    def ask(self, server: RunningServer, patience: float) -> None:
        """A single text. Raises ServerFailed, OSError, HTTPException."""
        server.embed(texts_of(self._shape, self.traffic.queries.seqlen, 1), patience=patience)

    def measure(self, bench: Bench, server: RunningServer) -> None:
        """Whatever is missing. Raises what `ask` raises where it does not answer any more."""
        traffic, loads = self.traffic, Loads(server, self._shape, self.traffic.patience)
        for bulk in traffic.bulks:
            work = {
                self._bulks[bulk]: partial(self._bulk, bench, loads, bulk),
                self._queries: partial(self._query, loads),
                self._boths[bulk]: partial(self._both, bench, loads, bulk),
            }
            if any(is_open(bench, key) for key in work):
                self.ask(server, _NEXT_SECONDS)
                loads.warm_up(bulk, traffic.queries)
            for key, figures in work.items():
                if is_open(bench, key):
                    self.ask(server, _NEXT_SECONDS)
                    measure(bench, key, figures)

    def _bulk(self, bench: Bench, loads: Loads, bulk: Bulk) -> Iterator[Figure]:
        before, began = batches_of(loads.server), time.perf_counter()
        phase, _ = loads.run(bulk=bulk)
        clocks = bench.clock.load(began)
        yield from bulk_figures(answered(phase), bulk)
        if clocks is not None:
            yield Figure("SM clock", clocks.sm_mhz, "MHz", str(clocks))
        num_batches, num_tokens = (now - then for now, then in zip(batches_of(loads.server), before, strict=True))
        yield Figure(TOKENS_A_BATCH, num_tokens / max(1, num_batches), "", f"{num_batches:.0f} batches")

    def _query(self, loads: Loads) -> Iterator[Figure]:
        _, phase = loads.run(queries=self.traffic.queries)
        yield from query_figures(answered(phase))

    def _both(self, bench: Bench, loads: Loads, bulk: Bulk) -> Iterator[Figure]:
        phases = loads.run(bulk=bulk, queries=self.traffic.queries)
        bulk_summary, query_summary = map(answered, phases)
        for figure in bulk_figures(bulk_summary, bulk):
            yield figure
            alone = bench.rows.value(self._bulks[bulk], BULK_RATE)
            if figure.metric == BULK_RATE and alone:
                yield Figure("share of bulk kept", figure.value / alone, "")
        yield from query_figures(query_summary)


class Reranker:
    """A query with many documents: one request at a time, and several."""

    def __init__(self, shape: Shape, way: str, reranking: Reranking, *, concurrency: int) -> None:
        self._shape = shape
        self._reranking = reranking
        what = f"rerank, {reranking.num_documents} documents of {reranking.seqlen} tokens"
        self._concurrencies = {
            Key(KIND, shape.name, way, f"{what}, {number} in flight"): number for number in (1, concurrency)
        }

    @property
    def keys(self) -> list[Key]:
        """Of all rows."""
        return list(self._concurrencies)

    def ask(self, server: RunningServer, patience: float) -> None:
        """A single document. Raises ServerFailed, OSError, HTTPException."""
        query, document = texts_of(self._shape, self._reranking.query_seqlen, 2)
        server.ask(RERANK_ROUTE, {"query": query, "texts": [document]}, patience=patience)

    def measure(self, bench: Bench, server: RunningServer) -> None:
        """Whatever is missing. Raises what `ask` raises where it does not answer any more."""
        loads = Loads(server, self._shape, patience=20.0)
        for key, concurrency in self._concurrencies.items():
            if is_open(bench, key):
                self.ask(server, _NEXT_SECONDS)
                measure(bench, key, partial(self._figures, loads, concurrency))

    def _figures(self, loads: Loads, concurrency: int) -> Iterator[Figure]:
        loads.rerank(self._reranking, concurrency=concurrency, num_requests=concurrency)  # a warm-up
        summary = answered(loads.rerank(self._reranking, concurrency=concurrency))
        yield Figure("documents", summary.texts_per_second, "1/s", f"{summary.num_requests} requests")
        yield Figure("p50", summary.percentile_ms(50), "ms")
        yield Figure("p99", summary.percentile_ms(99), "ms")
        yield Figure("rerank failed", sum(summary.failures.values()), "", failures(summary))


class Killed:
    """What becomes of bulk and queries whose engine's process is killed meanwhile."""

    def __init__(self, shape: Shape, way: str, traffic: Traffic) -> None:
        self._embedding = Embedding(shape, way, traffic)
        self._shape = shape
        self._traffic = traffic
        self._key = Key(KIND, shape.name, way, "engine killed")

    @property
    def keys(self) -> list[Key]:
        """Of all rows."""
        return [self._key]

    def ask(self, server: RunningServer, patience: float) -> None:
        """See Embedding."""
        self._embedding.ask(server, patience)

    def measure(self, bench: Bench, server: RunningServer) -> None:
        """Unless it is known."""
        measure(bench, self._key, partial(self._figures, server))

    def _figures(self, server: RunningServer) -> Iterator[Figure]:
        traffic, loads, killed_at = self._traffic, Loads(server, self._shape, self._traffic.patience), []
        bulk, engine = traffic.bulks[0], engine_of(server)

        def kill() -> None:
            os.kill(engine, signal.SIGKILL)
            killed_at.append(time.perf_counter())

        timer = threading.Timer(bulk.seconds / 2, kill)
        timer.start()
        phases = loads.run(bulk=bulk, queries=traffic.queries)
        timer.join()
        answers = [*_answers(phases), self._next_answer(server)]
        for phase, name in zip(phases, ("bulk", "interactive"), strict=True):
            yield from _ends(summarize(phase), name)
        yield Figure("longest without an answer", longest_gap(answers, since=killed_at[0]), "s", "from the kill on")

    def _next_answer(self, server: RunningServer) -> float:
        """When it came, by time.perf_counter()."""
        patience_ends = time.perf_counter() + self._traffic.patience
        while (left := patience_ends - time.perf_counter()) > 0:
            with contextlib.suppress(OSError, http.client.HTTPException, ServerFailed):
                self.ask(server, left)
                return time.perf_counter()
            time.sleep(_POLL_SECONDS)
        raise ServerFailed(f"no answer in {self._traffic.patience:.0f} s after the load whose engine was killed")


Work = Embedding | Reranker | Killed


def longest_gap(answers: Iterable[float], *, since: float) -> float:
    """Seconds, between this moment and the first answer after it, or between two answers."""
    times = [since, *sorted(answer for answer in answers if answer > since)]
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


def is_open(bench: Bench, key: Key) -> bool:
    """Whether it is still to be measured. What failed is tried anew by the next run: it may have been mended."""
    return bench.rows.value(key, TOOK) is None


def measure(bench: Bench, key: Key, work: Callable[[], Iterable[Figure]]) -> None:
    """Unless it is known. What fails is a row, too."""
    if is_open(bench, key):
        bench.measure(key, work, again=True)


def _answers(phases: Iterable[Phase]) -> list[float]:
    return [sample.done for phase in phases for sample in phase.samples if not sample.failure]


def _ends(summary: Summary, name: str) -> Iterator[Figure]:
    yield Figure(f"{name} answered", summary.num_requests, "requests")
    yield Figure(f"{name} failed", sum(summary.failures.values()), "requests", failures(summary))
