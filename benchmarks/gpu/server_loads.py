"""What is sent to a server in front of a GPU: bulk, queries, both at once, reranking; and the figures of it."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.gpu.random_models import batch_of, text_of
from benchmarks.gpu.rows import Figure
from benchmarks.gpu.shapes import Shape
from benchmarks.measuring.servers import RunningServer, ServerFailed
from embedline.bench.load import Generator, Load, Phase, Summary, summarize
from embedline.bench.options import Options, parse_url
from embedline.bench.requests import HttpRequest, post, prepare
from embedline.bench.run import run_on_loop

RERANK_ROUTE = "/rerank"
_MAX_QUERIES_OPEN = 4096
_WARM_UP = 0.3  # of the seconds that bulk is sent for


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """Requests of many texts, always some in flight."""

    seqlen: int  # tokens a text
    batch_size: int  # texts a request
    concurrency: int  # requests in flight: what is left of them when the time is up takes its time, too
    seconds: float
    num_requests: int = 16  # different ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Single texts, at random times."""

    seqlen: int
    rate: float  # a second
    seconds: float
    num_requests: int = 1024  # different ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """Requests of one query and many documents."""

    query_seqlen: int
    seqlen: int  # tokens a document
    num_documents: int
    seconds: float
    num_requests: int = 16  # different ones


@dataclass(slots=True)
class Loads:
    """What one server of this shape is sent."""

    server: RunningServer
    shape: Shape
    patience: float  # seconds that a request may take
    _prepared: dict[Bulk | Queries | Reranking, list[HttpRequest]] = field(default_factory=dict)

    def run(self, *, bulk: Bulk | None = None, queries: Queries | None = None) -> tuple[Phase, Phase]:
        """What came of each; of what was not asked for, nothing did."""
        phases = Phase(Load(concurrency=0)), Phase(Load(concurrency=0))
        asked = []
        if bulk is not None:
            phases[0].load = Load(concurrency=bulk.concurrency, seconds=bulk.seconds)
            asked.append((self._requests(bulk), phases[0]))
        if queries is not None:
            phases[1].load = Load(concurrency=_MAX_QUERIES_OPEN, seconds=queries.seconds, rate=queries.rate, seed=0)
            asked.append((self._requests(queries), phases[1]))
        run_on_loop(self._run(asked))
        return phases

    def rerank(self, reranking: Reranking, *, concurrency: int, num_requests: int | None = None) -> Phase:
        """So many requests in flight, for a while or until there were this many."""
        seconds = reranking.seconds if num_requests is None else None
        phase = Phase(Load(concurrency=concurrency, seconds=seconds, num_requests=num_requests))
        run_on_loop(self._run([(self._requests(reranking), phase)]))
        return phase

    def warm_up(self, bulk: Bulk, queries: Queries) -> None:
        """Both at once, uncounted."""
        seconds = _WARM_UP * bulk.seconds
        phases = [Phase(Load(concurrency=concurrency, seconds=seconds)) for concurrency in (bulk.concurrency, 4)]
        run_on_loop(self._run(list(zip((self._requests(bulk), self._requests(queries)), phases, strict=True))))

    async def _run(self, asked: Sequence[tuple[list[HttpRequest], Phase]]) -> None:
        target = parse_url(f"127.0.0.1:{self.server.port}")
        generators = [Generator(target, requests, patience=self.patience) for requests, _ in asked]
        try:
            await asyncio.gather(
                *(generator.run(phase) for generator, (_, phase) in zip(generators, asked, strict=True))
            )
        finally:
            for generator in generators:
                generator.close()

    def _requests(self, load: Bulk | Queries | Reranking) -> list[HttpRequest]:
        if load not in self._prepared:
            makers = {Bulk: self._bulk, Queries: self._queries, Reranking: self._reranking}
            self._prepared[load] = makers[type(load)](load)  # type: ignore[operator]
        return self._prepared[load]

    def _bulk(self, load: Bulk) -> list[HttpRequest]:
        return self._embed(load.seqlen, load.num_requests * load.batch_size, load.batch_size, "bulk")

    def _queries(self, load: Queries) -> list[HttpRequest]:
        return self._embed(load.seqlen, load.num_requests, 1, "interactive")

    def _embed(self, seqlen: int, num_texts: int, batch_size: int, request_class: str) -> list[HttpRequest]:
        url = f"127.0.0.1:{self.server.port}"
        options = Options(
            url=url, batch_size=batch_size, model="m", encoding="bytes", request_class=request_class
        )  # fmt: skip
        return prepare(options, parse_url(url), texts_of(self.shape, seqlen, num_texts))

    def _reranking(self, load: Reranking) -> list[HttpRequest]:
        target = parse_url(f"127.0.0.1:{self.server.port}")
        texts = texts_of(self.shape, load.seqlen, load.num_requests * load.num_documents)
        queries = texts_of(self.shape, load.query_seqlen, load.num_requests)
        size = load.num_documents
        bodies = (
            {"query": query, "texts": texts[number * size : (number + 1) * size]}
            for number, query in enumerate(queries)
        )
        return [HttpRequest(post(target, RERANK_ROUTE, json.dumps(body).encode()), size) for body in bodies]


def texts_of(shape: Shape, seqlen: int, num: int) -> list[str]:
    """Different ones."""
    batch = batch_of(shape, [seqlen] * num, seed=seqlen)
    return [text_of(token_ids) for token_ids in batch.token_ids.reshape(-1, seqlen).tolist()]


def answered(phase: Phase) -> Summary:
    """Sum up a phase. Raises ServerFailed where nothing was answered."""
    summary = summarize(phase)
    if not summary.num_requests:
        raise ServerFailed(f"nothing was answered: {failures(summary) or 'nothing was sent'}")
    return summary


def failures(summary: Summary) -> str:
    """How many requests failed in which way."""
    return "; ".join(f"{count} x {failure}" for failure, count in summary.failures.items())


def bulk_figures(summary: Summary, bulk: Bulk) -> Iterator[Figure]:
    """Of bulk, alone or beside queries."""
    yield Figure("bulk rate", summary.texts_per_second * bulk.seqlen, "tokens/s", f"{summary.num_texts} texts")
    yield Figure("bulk failed", sum(summary.failures.values()), "", failures(summary))


def query_figures(summary: Summary) -> Iterator[Figure]:
    """Of queries, alone or beside bulk."""
    yield Figure("interactive p50", summary.percentile_ms(50), "ms", f"{summary.num_requests} queries")
    yield Figure("interactive p99", summary.percentile_ms(99), "ms")
    yield Figure("interactive failed", sum(summary.failures.values()), "", failures(summary))
    yield Figure("generator late", summary.lag_p99_ms or 0.0, "ms")


def notes_of(server: RunningServer) -> str:
    """What the engine says of itself: whether the model is in FP8 as a whole, what it computes with."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/info", timeout=10) as answer:
        info = json.load(answer)["models"][0]["info"]
    return "; ".join([f"{info['engine']}, {info['dtype']}", *info["notes"]])


def batches_of(server: RunningServer) -> tuple[float, float]:
    """How many batches were computed so far, and the tokens of all."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = dict.fromkeys(("count", "sum"), 0.0)
    for line in lines:
        for name in found:
            if line.startswith(f"embedline_batch_tokens_{name}{{"):
                found[name] += float(line.rpartition(" ")[2])
    return found["count"], found["sum"]
