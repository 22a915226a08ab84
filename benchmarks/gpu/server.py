"""The whole server in front of one GPU: bulk alone, interactive alone, and both at once.

Where the Python at hand lacks what the server needs (fastapi, uvicorn, msgspec, …), WHEELS names a folder of wheels:
they are unpacked into a temporary folder that goes onto the path. Nothing is installed.
"""

import asyncio
import contextlib
import json
import os
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.random_models import batch_of, build, save, text_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import QWEN3_06B, QWEN3_8B, TINY_BERT, Shape
from benchmarks.gpu.targets import BF16, FP8
from benchmarks.measuring.servers import Recipe, RunningServer, embedline, running
from embedline.bench.bodies import Request, prepare
from embedline.bench.load import Generator, Load, Phase
from embedline.bench.options import Options, parse_url
from embedline.bench.run import run_on_loop
from embedline.bench.summary import Summary, summarize

KIND = "server"
BULK, INTERACTIVE, BOTH = "bulk alone", "interactive alone", "both loads"
_QUANTIZATIONS = {BF16: "none", FP8: "fp8"}
_PATIENCE = 300.0  # seconds, from the start to the first answer: a model of 8B is read and its kernels compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is sent."""

    bulk_seqlen: int  # tokens a text
    bulk_batch_size: int  # texts a request
    bulk_concurrency: int  # requests in flight
    query_seqlen: int
    query_rate: float  # a second, Poisson
    num_texts: int  # different ones of each kind
    seconds: float  # of each of the three runs
    warmup: float


_TRAFFIC = Traffic(
    bulk_seqlen=512, bulk_batch_size=32, bulk_concurrency=24, query_seqlen=32, query_rate=50.0, num_texts=4096,
    seconds=15.0, warmup=5.0,
)  # fmt: skip
_TINY_TRAFFIC = Traffic(
    bulk_seqlen=48, bulk_batch_size=4, bulk_concurrency=2, query_seqlen=8, query_rate=20.0, num_texts=64,
    seconds=0.5, warmup=0.2,
)  # fmt: skip


def run(bench: Bench) -> None:
    """A server for each model."""
    cases = ((TINY_BERT, BF16),) if bench.is_tiny else ((QWEN3_06B, BF16), (QWEN3_8B, FP8))
    for shape, way in cases:
        keys = {what: Key(KIND, shape.name, way, what) for what in (BULK, INTERACTIVE, BOTH)}
        if bench.are_missing(keys.values()):
            bench.check_time()
            with TemporaryDirectory() as folder, unpacked(os.environ.get("WHEELS"), Path(folder, "wheels")) as path:
                model = save(build(shape, bench.clock.device, is_tame=True), Path(folder, "model"))
                bench.release()
                recipe = recipe_of(model, str(bench.clock.device), way, path=path)
                with running(recipe, cache=Path(folder, "cache")) as server:
                    _measure(bench, server, shape, keys)


def recipe_of(model: Path, device: str, way: str, *, path: Sequence[str]) -> Recipe:
    """Ours, from this checkout."""
    quantization = _QUANTIZATIONS[way]
    flags = ("--model-id", str(model), "--engine", "fused", "--devices", device, "--quantization", quantization)
    recipe = embedline(*flags)
    recipe.environment["PYTHONPATH"] = os.pathsep.join([recipe.environment["PYTHONPATH"], *path])
    return recipe


@contextlib.contextmanager
def unpacked(wheels: str | None, folder: Path) -> Iterator[list[str]]:
    """What is to be on the path of a process: the folder of these wheels' files, behind whatever is there already."""
    found = sorted(Path(wheels).glob("*.whl")) if wheels else []
    if wheels and not found:
        raise FileNotFoundError(f"WHEELS={wheels} holds no *.whl")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    yield [*([str(folder)] if found else []), *filter(None, [os.environ.get("PYTHONPATH")])]


def _measure(bench: Bench, server: RunningServer, shape: Shape, keys: dict[str, Key]) -> None:
    traffic = _TINY_TRAFFIC if bench.is_tiny else _TRAFFIC
    server.wait_for_answer(text_of(range(5, 5 + traffic.query_seqlen)), patience=_PATIENCE)
    loads = Loads(server.port, shape, traffic)
    loads.run(is_bulk=True, is_interactive=True, seconds=traffic.warmup)
    bench.measure(keys[BULK], partial(_bulk, loads, _notes(server.port)))
    bench.measure(keys[INTERACTIVE], partial(_interactive, loads))
    bench.measure(keys[BOTH], partial(_both, bench, loads, keys))


class Loads:
    """Both kinds of traffic on one server."""

    def __init__(self, port: int, shape: Shape, traffic: Traffic) -> None:
        self.traffic = traffic
        self._port = port
        kinds = ((traffic.bulk_seqlen, traffic.bulk_batch_size, "bulk"), (traffic.query_seqlen, 1, "interactive"))
        self._bulk, self._queries = (
            self._requests(shape, seqlen, batch_size=batch_size, request_class=name)
            for seqlen, batch_size, name in kinds
        )

    def run(self, *, is_bulk: bool, is_interactive: bool, seconds: float) -> tuple[Summary, Summary]:
        """What came of the bulk, and of the queries; of what was not asked for, nothing did."""
        traffic = self.traffic
        bulk = Phase(Load(concurrency=traffic.bulk_concurrency, seconds=seconds))
        queries = Phase(Load(concurrency=4096, seconds=seconds, rate=traffic.query_rate, seed=0))
        asked = [(self._bulk, bulk)] * is_bulk + [(self._queries, queries)] * is_interactive
        run_on_loop(self._run(asked))
        return summarize(bulk), summarize(queries)

    async def _run(self, asked: Sequence[tuple[list[Request], Phase]]) -> None:
        target = parse_url(f"127.0.0.1:{self._port}")
        generators = [Generator(target, requests, patience=_PATIENCE) for requests, _ in asked]
        try:
            await asyncio.gather(
                *(generator.run(phase) for generator, (_, phase) in zip(generators, asked, strict=True))
            )
        finally:
            for generator in generators:
                generator.close()

    def _requests(self, shape: Shape, seqlen: int, *, batch_size: int, request_class: str) -> list[Request]:
        batch = batch_of(shape, [seqlen] * self.traffic.num_texts, seed=batch_size)
        texts = [text_of(token_ids) for token_ids in batch.token_ids.reshape(-1, seqlen).tolist()]
        options = Options(
            url=f"127.0.0.1:{self._port}",
            batch_size=batch_size,
            model="m",
            encoding="bytes",
            request_class=request_class,
        )
        return prepare(options, parse_url(options.url), texts)


def _notes(port: int) -> str:
    """What the engine says of itself: whether the model is in FP8 as a whole, how it attends."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/info") as answer:
        notes: list[str] = json.load(answer)["models"][0]["info"]["notes"]
    return "; ".join(notes)


def _bulk(loads: Loads, notes: str) -> Iterator[Figure]:
    summary, _ = loads.run(is_bulk=True, is_interactive=False, seconds=loads.traffic.seconds)
    yield Figure("texts", summary.num_texts, "", notes)
    yield from _bulk_figures(loads, summary)


def _interactive(loads: Loads) -> Iterator[Figure]:
    _, summary = loads.run(is_bulk=False, is_interactive=True, seconds=loads.traffic.seconds)
    yield from _query_figures(summary)


def _both(bench: Bench, loads: Loads, keys: dict[str, Key]) -> Iterator[Figure]:
    bulk, queries = loads.run(is_bulk=True, is_interactive=True, seconds=loads.traffic.seconds)
    alone = bench.rows.value(keys[BULK], "bulk rate")
    yield from _bulk_figures(loads, bulk)
    if alone:
        yield Figure("share of bulk kept", bulk.texts_per_second * loads.traffic.bulk_seqlen / alone, "")
    yield from _query_figures(queries)


def _bulk_figures(loads: Loads, summary: Summary) -> Iterator[Figure]:
    yield Figure("bulk rate", summary.texts_per_second * loads.traffic.bulk_seqlen, "tokens/s")
    yield Figure("bulk failed", sum(summary.failures.values()), "", _failures(summary))


def _query_figures(summary: Summary) -> Iterator[Figure]:
    yield Figure("interactive p50", summary.percentile_ms(50), "ms", f"{summary.num_requests} queries")
    yield Figure("interactive p99", summary.percentile_ms(99), "ms")
    yield Figure("interactive failed", sum(summary.failures.values()), "", _failures(summary))
    yield Figure("generator late", summary.lag_p99_ms or 0.0, "ms")


def _failures(summary: Summary) -> str:
    return "; ".join(f"{count} x {failure}" for failure, count in summary.failures.items())
