"""The loads that every server gets."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measuring.load import requests_of, rerank_requests
from benchmarks.measuring.texts import Corpus, Prose
from benchmarks.peers.models import PeerModel
from embedline.bench.load import Load
from embedline.bench.requests import HttpRequest

_GAP_SECONDS = 0.02
_LONG = (200, 256)  # tokens


@dataclass(frozen=True, slots=True)
class Case:
    """A load that every server gets."""

    name: str
    corpus: Corpus
    batch_size: int
    concurrency: int
    seconds: float
    gap: float = 0.0  # seconds between an answer and the next request
    queries: Corpus | None = None  # of rerankers, whose documents are the corpus

    def __str__(self) -> str:
        gap = f", {1000 * self.gap:.0f} ms after the last answer" if self.gap else ""
        queries = f"; {self.queries}" if self.queries else ""
        return f"{self.name}: {self.concurrency} requests of {self.batch_size} in flight{gap}{queries}; {self.corpus}."

    @property
    def load(self) -> Load:
        """How many requests of a reranker there are is given, as one can take seconds."""
        if self.queries is not None:
            return Load(concurrency=self.concurrency, num_requests=len(self.queries.texts))
        return Load(concurrency=self.concurrency, seconds=self.seconds)

    def requests(self, port: int, *, documents_field: str) -> list[HttpRequest]:
        """The requests to a server on this port."""
        if self.queries is None:
            return requests_of(port, self.corpus, batch_size=self.batch_size)
        return rerank_requests(port, self.queries, self.corpus, num=self.batch_size, field=documents_field)


def cases(model: PeerModel, prose: Prose, *, is_quick: bool) -> list[Case]:
    """Those of every round."""
    if model.is_reranker:
        return _of_reranker(prose, is_quick=is_quick)
    return _of_embeddings(model.name, prose, is_quick=is_quick)


def _of_reranker(prose: Prose, *, is_quick: bool) -> list[Case]:
    """Queries of 10 tokens, documents of 50."""
    documents = prose.uniform("documents", 512, num_tokens=50)

    def case(name: str, batch_size: int, concurrency: int, num_queries: int) -> Case:
        queries = prose.uniform("queries", num_queries, num_tokens=10)
        return Case(name, documents, batch_size, concurrency, 0.0, queries=queries)

    lone = case("lone query, 5 documents", 5, 1, 2 if is_quick else 5)
    return [lone] if is_quick else [lone, case("lone query, 20 documents", 20, 1, 5), case("4 x 10", 10, 4, 12)]


def _of_embeddings(model: str, prose: Prose, *, is_quick: bool) -> list[Case]:
    """The larger models get fewer texts at a time, or answers would take a minute."""
    mixed, query = prose.mixed(4096), prose.uniform("query", 512, num_tokens=10)
    long = prose.spread("long", 1024, num_tokens=_LONG)
    lone = [Case("lone query", query, 1, 1, 5.0), Case("lone query, 20 ms between", query, 1, 1, 12.0, _GAP_SECONDS)]
    if is_quick:
        if model != "minilm":
            return [Case("mixed, 64 x 1", mixed, 1, 64, 3.0), Case("lone query", query, 1, 1, 2.0)]
        busy = [Case("mixed, 64 x 1", mixed, 1, 64, 3.0), Case("mixed, 8 x 32", mixed, 32, 8, 3.0)]
        return [
            *busy,
            *(dataclasses.replace(case, seconds=1.5) for case in lone),
            Case("long, 64 x 1", long, 1, 64, 3.0),
        ]
    short = prose.uniform("short", 4096, num_tokens=16)
    if model == "qwen3-embedding":
        return [
            *(dataclasses.replace(case, seconds=10.0) for case in lone),
            Case("short, 16 x 1", short, 1, 16, 15.0),
            Case("mixed, 16 x 1", mixed, 1, 16, 30.0),
        ]
    eighty = prose.uniform("80 tokens", 2048, num_tokens=80)
    if model == "bge-base":
        return [
            Case("mixed, 64 x 1", mixed, 1, 64, 15.0),
            *lone,
            Case("short, 64 x 1", short, 1, 64, 8.0),
            Case("80 tokens, 64 x 1", eighty, 1, 64, 12.0),
            Case("long, 16 x 1", long, 1, 16, 12.0),
        ]
    return [
        Case("mixed, 64 x 1", mixed, 1, 64, 8.0),
        Case("mixed, 8 x 32", mixed, 32, 8, 8.0),
        *lone,
        Case("short, 64 x 1", short, 1, 64, 3.0),
        Case("short, 8 x 32", short, 32, 8, 3.0),
        Case("80 tokens, 64 x 1", eighty, 1, 64, 5.0),
        Case("80 tokens, 8 x 32", eighty, 32, 8, 5.0),
        Case("long, 64 x 1", long, 1, 64, 7.0),
        Case("long, 8 x 32", long, 32, 8, 7.0),
    ]


def lone_query(loads: Sequence[Case]) -> Case:
    """One that every set has."""
    return next(case for case in loads if case.name.startswith("lone query"))
