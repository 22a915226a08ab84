"""The whole server in front of one GPU. What comes last is what a short run does not reach; the same command goes on.

Seconds that each part takes on an H100 of a fresh machine; the last but one was not measured.

| part | seconds |
|---|---|
| torch and transformers imported from a cold disk (from a warm one 4), and again in the step's process | 16 + 8 |
| 0.6B in bf16: folder, start (8B's folder is written meanwhile), loads, the engine alone | 2 + 28 + 28 + 8 |
| 8B in FP8: start (the reranker's folder is written meanwhile), loads, the engine alone | 54 + 34 + 10 |
| 8B in FP8: start from the cache; its engine killed | 15 + 13 |
| reranker of 0.6B: start, loads | 20 + 8 |
| in all, on a fresh machine | 244 |

WHEELS names a folder of wheels for what the Python at hand lacks of the server.
SCRATCH names a folder that keeps models and caches for the next call (30 GB). Without it models are in shared memory,
or in a temporary folder where that has no room, and all is gone at the end.
"""

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.bench import Bench, BrokenDevice, TimeUp, one_line
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.model_folders import Folders, ModelFolder, roomy_place
from benchmarks.gpu.rows import FAILED, Figure, Key
from benchmarks.gpu.server_cases import Embedding, Killed, Reranker, Traffic, Work, is_open, measure
from benchmarks.gpu.server_loads import Bulk, Queries, Reranking, notes_of
from benchmarks.gpu.server_shares import note_share
from benchmarks.gpu.server_start import Starter, unpacked
from benchmarks.gpu.shapes import QWEN3_06B, QWEN3_8B, TINY_BERT, TINY_QWEN3, Shape
from benchmarks.gpu.targets import BF16, CACHED, FP8, NOTHING_CACHED, TRANSFORMERS
from benchmarks.measuring.servers import RunningServer, ServerFailed
from engine.model.coverage import Use

_START = "cold start"
_FLAGS = {
    BF16: ("--engine", "fused", "--quantization", "none"),
    FP8: ("--engine", "fused", "--quantization", "fp8"),
    TRANSFORMERS: ("--engine", "transformers", "--task", "rerank", "--template", "Qwen3-Reranker"),
}
_PATIENCE = 90.0  # seconds, from the start to the first answer


@dataclass(frozen=True, slots=True)
class Case:
    """One start of a server, and what it is sent."""

    shape: Shape
    way: str
    work: Work
    start: str = NOTHING_CACHED

    @property
    def folder(self) -> ModelFolder:
        """That it is started with."""
        return ModelFolder(self.shape, Use.GENERATIVE_RERANK if self.way == TRANSFORMERS else Use.EMBED)

    @property
    def start_key(self) -> Key:
        """Of the seconds to the first answer."""
        return Key(_START, self.shape.name, self.way, self.start)

    def open_keys(self, bench: Bench) -> list[Key]:
        """What is still to be measured, in this order."""
        return [key for key in (self.start_key, *self.work.keys) if is_open(bench, key)]


def run(bench: Bench) -> None:
    """Case by case. One that fails takes no other with it."""
    with contextlib.ExitStack() as stack:
        kept = os.environ.get("SCRATCH")
        models = kept or stack.enter_context(TemporaryDirectory(dir=roomy_place()))
        place = kept or stack.enter_context(TemporaryDirectory())  # shared memory may not hold what is executed
        folders = Folders(Path(models, "models"), bench.clock.device)
        stack.callback(folders.close)
        wheels = unpacked(os.environ.get("WHEELS"), Path(place, "wheels"))
        runner = Runner(bench, folders, Starter(bench, wheels, Path(place, "caches")))
        cases = _tiny_cases() if bench.is_tiny else _cases()
        for number, case in enumerate(cases):
            if case.open_keys(bench):
                runner.attempt(case, next((one for one in cases[number + 1 :] if one.open_keys(bench)), None))
            _note_shares(bench, case)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs cases."""

    bench: Bench
    folders: Folders
    starter: Starter

    def attempt(self, case: Case, following: Case | None) -> None:
        """Measure it. Of what ends it, the first of its keys that is still open has a row. Raises TimeUp."""
        self.bench.check_time()
        try:
            path = self.folders.begin(case.folder).result()
            self._prepare_cache(case, path)
            self._run(case, path, [self.folders.begin(following.folder)] if following else [])
        except (TimeUp, BrokenDevice):
            raise
        except Exception as error:  # of a server, a folder, a log
            key = next(iter(case.open_keys(self.bench)), case.start_key)
            self.bench.rows.fail(key, one_line(error))
            print(f"{key}: failed ({one_line(error)})", flush=True)

    def _prepare_cache(self, case: Case, path: Path) -> None:
        """As the start is said to find it."""
        key, has_cache = case.start_key, self.starter.has_cache(case.start_key)
        if not has_cache or (case.start == NOTHING_CACHED and is_open(self.bench, key)):
            self.starter.forget_cache(key)
        if case.start == CACHED and not has_cache:
            first = replace(case, start=NOTHING_CACHED).start_key
            if self.bench.rows.value(first, FAILED, run=self.bench.rows.run) is not None:
                raise ServerFailed("the same start without a cache failed")
            with self._started(case, path):
                pass

    def _run(self, case: Case, path: Path, writing: Sequence[Future[Path]]) -> None:
        bench, key = self.bench, case.start_key
        with self._started(case, path) as (server, seconds):
            place = f"weights in {_place(path)}, cache in {_place(self.starter.caches)}"
            beside = ["the next model's weights were written meanwhile"] if writing else []
            notes = notes_of(server).replace(str(self.starter.caches), "the cache")
            note = "; ".join([place, *beside, notes])
            measure(bench, key, lambda: [Figure("to the first embedding", seconds, "s", note)])
            wait(writing)  # so that nothing else is done while the server is measured
            case.work.measure(bench, server)

    @contextlib.contextmanager
    def _started(self, case: Case, path: Path) -> Iterator[tuple[RunningServer, float]]:
        """A server that has answered, and how many seconds that took."""
        flags = ("--model-id", str(path), *_FLAGS[case.way])
        with self.starter.started(case.start_key, flags) as server:
            ask = partial(case.work.ask, server)
            yield server, self.starter.first_answer(case.start_key, server, ask, patience=_PATIENCE)


def _place(path: Path) -> str:
    """Shared memory, or a disk."""
    return "/dev/shm" if path.is_relative_to("/dev/shm") else f"/{path.parts[1]}"


def _note_shares(bench: Bench, case: Case) -> None:
    if not isinstance(case.work, Embedding):
        return
    subject = Subject(case.shape, case.way, bench.clock.device)
    for bulk in case.work.traffic.bulks:
        note_share(bench, subject, bulk.seqlen)
    del subject
    gc.collect()  # parts of a model refer to each other
    bench.release()


def _cases() -> list[Case]:
    small, large = _traffic(4), _traffic(2)
    reranking = Reranking(query_seqlen=16, seqlen=128, num_documents=100, seconds=3.0)
    return [
        Case(QWEN3_06B, BF16, Embedding(QWEN3_06B, BF16, small)),
        Case(QWEN3_8B, FP8, Embedding(QWEN3_8B, FP8, large)),
        Case(QWEN3_8B, FP8, Killed(QWEN3_8B, FP8, replace(large, patience=30.0)), CACHED),
        Case(QWEN3_06B, TRANSFORMERS, Reranker(QWEN3_06B, TRANSFORMERS, reranking, concurrency=4)),
    ]


def _traffic(num_long: int) -> Traffic:
    """So many requests of long texts in flight, three times as many of short ones: of 8B one takes 0.8 s."""
    bulks = (
        Bulk(seqlen=512, batch_size=128, concurrency=num_long, seconds=5.0),
        Bulk(seqlen=128, batch_size=128, concurrency=3 * num_long, seconds=3.0),
    )
    return Traffic(bulks=bulks, queries=Queries(seqlen=32, rate=50.0, seconds=5.0), patience=15.0)


def _tiny_cases() -> list[Case]:
    bulks = tuple(Bulk(seqlen=seqlen, batch_size=4, concurrency=2, seconds=0.5) for seqlen in (48, 16))
    traffic = Traffic(bulks=bulks, queries=Queries(seqlen=8, rate=20.0, seconds=0.5), patience=30.0)
    reranking = Reranking(query_seqlen=4, seqlen=16, num_documents=10, seconds=0.5)
    config = {**TINY_QWEN3.config, "max_position_embeddings": 256}
    reranker = replace(TINY_QWEN3, max_seqlen=256, config=config)  # the template alone takes more than 64 tokens
    return [
        Case(TINY_BERT, BF16, Embedding(TINY_BERT, BF16, traffic)),
        Case(TINY_BERT, FP8, Embedding(TINY_BERT, FP8, traffic)),
        Case(reranker, TRANSFORMERS, Reranker(reranker, TRANSFORMERS, reranking, concurrency=2)),
        Case(TINY_BERT, FP8, Killed(TINY_BERT, FP8, traffic), CACHED),
    ]
