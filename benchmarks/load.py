"""A server under one load: what came back, and what it cost the server, the machine and the generator."""

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.processes import machine_cpu_seconds, tree_cpu_seconds
from embedline.bench.bodies import Request, prepare
from embedline.bench.load import Generator, Load, Phase
from embedline.bench.options import Options, parse_url
from embedline.bench.run import run_on_loop
from embedline.bench.summary import Summary, summarize

if TYPE_CHECKING:  # it needs tokenizers, which whoever brings requests of their own may lack
    from benchmarks.texts import Corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. CPU seconds are of the whole run, the answers that came after its end included."""

    summary: Summary
    cpu_seconds: float  # of the server's processes
    foreign_share: float  # of the machine's CPU time: neither the server's nor the generator's

    @property
    def cpu_per_1000_texts(self) -> float:
        """Seconds; NaN where nothing was answered."""
        return 1000 * self.cpu_seconds / self.summary.num_texts if self.summary.num_texts else float("nan")


def requests_of(port: int, corpus: "Corpus", *, batch_size: int) -> list[Request]:
    """OpenAI's requests for floats, each with the next texts."""
    options = Options(url=f"127.0.0.1:{port}", batch_size=batch_size, model="m")
    return prepare(options, parse_url(options.url), corpus.texts)


def measure(pid: int, port: int, requests: list[Request], load: Load, *, patience: float = 60.0) -> Measured:
    """Put a load on the server whose first process is `pid`."""
    own, server, machine, began = _own_cpu(), tree_cpu_seconds(pid), machine_cpu_seconds(), time.perf_counter()
    summary = summarize(drive(port, requests, load, patience=patience))
    own, server, machine = _own_cpu() - own, tree_cpu_seconds(pid) - server, machine_cpu_seconds() - machine
    capacity = (time.perf_counter() - began) * (os.cpu_count() or 1)
    foreign = max(0.0, machine - server - own) / capacity
    return Measured(summary=summary, cpu_seconds=server, foreign_share=foreign)


def drive(port: int, requests: list[Request], load: Load, *, patience: float = 60.0) -> Phase:
    """Send the requests in turn."""

    async def run() -> Phase:
        generator = Generator(parse_url(f"127.0.0.1:{port}"), requests, patience=patience)
        phase = Phase(load)
        try:
            await generator.run(phase)
        finally:
            generator.close()
        return phase

    return run_on_loop(run())


def _own_cpu() -> float:
    times = os.times()
    return times.user + times.system
