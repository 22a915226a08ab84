"""A server under one load or several: what came back, and what it cost the server, the machine and the generator."""

import asyncio
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.measuring.processes import machine_cpu_seconds, tree_cpu_seconds
from benchmarks.measuring.servers import RERANK_ROUTE
from embedline.bench.load import Generator, Load, Phase, Summary, summarize
from embedline.bench.options import Options, parse_url
from embedline.bench.requests import HttpRequest, post, prepare
from embedline.bench.run import run_on_loop

if TYPE_CHECKING:  # it needs tokenizers, which whoever brings requests of their own may lack
    from benchmarks.measuring.texts import Corpus

Traffic = Sequence[tuple[list[HttpRequest], Load]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. CPU seconds are of the whole run, the answers that came after its end included."""

    summary: Summary
    cpu_seconds: float  # of the server's processes
    foreign_share: float  # of the machine's CPU time: neither the servers' nor the generator's
    resting_share: float = 0.0  # of the same, of a server beside it that is up and not asked

    @property
    def cpu_per_1000_texts(self) -> float:
        """Seconds; NaN where nothing was answered."""
        return 1000 * self.cpu_seconds / self.summary.num_texts if self.summary.num_texts else float("nan")


def requests_of(port: int, corpus: "Corpus", *, batch_size: int) -> list[HttpRequest]:
    """OpenAI's requests for floats, each with the next texts."""
    options = Options(url=f"127.0.0.1:{port}", batch_size=batch_size, model="m")
    return prepare(options, parse_url(options.url), corpus.texts)


def rerank_requests(port: int, queries: "Corpus", documents: "Corpus", *, num: int, field: str) -> list[HttpRequest]:
    """Each query with the next so many documents, which are in this field."""
    target, texts, found = parse_url(f"127.0.0.1:{port}"), itertools.cycle(documents.texts), []
    for query in queries.texts:
        body = {"query": query, field: list(itertools.islice(texts, num)), "model": "m"}
        found.append(HttpRequest(post(target, RERANK_ROUTE, json.dumps(body).encode()), num))
    return found


def measure(
    pid: int,
    port: int,
    requests: list[HttpRequest],
    load: Load,
    *,
    gap: float = 0.0,
    patience: float = 60.0,
    beside: int = 0,
) -> Measured:
    """Put a load on the server whose first process is `pid`.

    gap     as `drive` has it
    beside  the first process of another server, whose CPU time is not foreign
    """
    (measured,) = _measured(pid, lambda: [drive(port, requests, load, gap=gap, patience=patience)], beside=beside)
    return measured


def measure_together(pid: int, port: int, traffic: Traffic, *, patience: float = 60.0) -> list[Measured]:
    """Put several loads on a server at once; the CPU's figures are of all of them together."""
    return _measured(pid, lambda: drive_together(port, traffic, patience=patience))


def _measured(pid: int, run: Callable[[], list[Phase]], *, beside: int = 0) -> list[Measured]:
    before, began = _cpu_of(pid, beside), time.perf_counter()
    summaries = [summarize(phase) for phase in run()]
    machine, server, idle, own = (then - first for then, first in zip(_cpu_of(pid, beside), before, strict=True))
    capacity = (time.perf_counter() - began) * (os.cpu_count() or 1)
    shares = {"foreign_share": max(0.0, machine - server - idle - own) / capacity, "resting_share": idle / capacity}
    return [Measured(summary=summary, cpu_seconds=server, **shares) for summary in summaries]


def drive(port: int, requests: list[HttpRequest], load: Load, *, gap: float = 0.0, patience: float = 60.0) -> Phase:
    """Send the requests in turn. With a gap they go one by one, each so many seconds after the last answer."""
    if gap:
        return _drive_with_gaps(port, requests, load, gap=gap, patience=patience)
    (phase,) = drive_together(port, [(requests, load)], patience=patience)
    return phase


def _drive_with_gaps(port: int, requests: list[HttpRequest], load: Load, *, gap: float, patience: float) -> Phase:
    async def run() -> Phase:
        generator = Generator(parse_url(f"127.0.0.1:{port}"), requests, patience=patience)
        whole = Phase(load, began=time.perf_counter())
        try:
            while time.perf_counter() < whole.began + (load.seconds or 0.0):
                await generator.run(single := Phase(Load(concurrency=1, num_requests=1)))
                whole.samples += single.samples
                await asyncio.sleep(gap)
        finally:
            generator.close()
        return whole

    return run_on_loop(run())


def drive_together(port: int, traffic: Traffic, *, patience: float = 60.0) -> list[Phase]:
    """Send the requests of each load in turn, those of different loads side by side."""

    async def run_one(requests: list[HttpRequest], load: Load) -> Phase:
        generator = Generator(parse_url(f"127.0.0.1:{port}"), requests, patience=patience)
        phase = Phase(load)
        try:
            await generator.run(phase)
        finally:
            generator.close()
        return phase

    async def run() -> list[Phase]:
        return await asyncio.gather(*(run_one(requests, load) for requests, load in traffic))

    return run_on_loop(run())


def _cpu_of(pid: int, beside: int) -> tuple[float, float, float, float]:
    """Seconds so far: of the machine, the server, the one beside it, and this process."""
    times = os.times()
    idle = tree_cpu_seconds(beside) if beside else 0.0
    return machine_cpu_seconds(), tree_cpu_seconds(pid), idle, times.user + times.system
