"""One engine alone, in a process of its own: no HTTP, no tokenizing, no batch manager. Started by benchmarks.engines.

python -m benchmarks.engines.process FOLDER, in which job.json says what to do, and result.json, rows.npy and pairs.npy
will lie.
"""

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring.processes import machine_cpu_seconds
from embedline.bench.load import percentile
from engine import registry
from engine.messages import LoadOptions
from engine.selftest.warmup import warm_up
from engine.types import Batch, Engine, EngineError, OutputKind, compute

_MIN_BATCH_TOKENS = 256
_WARM_SECONDS = 1.0
_NUM_QUERIES, _NUM_SKIPPED = 120, 20
_COMPARED = 64

_GROUP = 256  # texts given to sentence-transformers at once

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run gave; rates count what came back within its time."""

    texts_per_second: float
    tokens_per_second: float
    num_texts: int  # what came back after its time included


class Loaded:
    """An engine of the registry."""

    def __init__(self, job: dict[str, Any]) -> None:
        name, reason = registry.choose(job["engine"], quantization=job["options"]["quantization"])
        self._engine: Engine = registry.load(name, name="m", reason=reason, options=LoadOptions(**job["options"]))
        limits = warm_up(self._engine)
        in_time = max(_MIN_BATCH_TOKENS, int(limits.tokens_per_second * limits.max_batch_seconds))
        self.batch_tokens = min(in_time, limits.target_num_tokens or limits.max_num_tokens)
        self.notes = list(self._engine.info.notes)

    def run(self, sequences: Sequence[Ids], seconds: float) -> Ran:
        """Texts are packed in the order in which they come."""
        batches = [_batch(group) for group in _groups(sequences, self.batch_tokens)]
        stopped = threading.Event()
        sizes: list[tuple[int, int]] = []  # texts and tokens of the batches that came back
        tickets: dict[int, tuple[int, int]] = {}
        noted = threading.Condition()

        def submit() -> None:
            at = 0
            while not stopped.is_set():
                batch = batches[at % len(batches)]
                ticket = self._engine.submit(batch)
                with noted:
                    tickets[ticket] = (batch.num_seqs, batch.num_tokens)
                    noted.notify()
                at += 1

        began = time.perf_counter()
        submitter = threading.Thread(target=submit)
        submitter.start()
        while time.perf_counter() < began + seconds:
            sizes.append(self._collect(tickets, noted))
        took = time.perf_counter() - began
        stopped.set()
        num_in_time = len(sizes)
        while submitter.is_alive() or tickets:  # what is inside must come out before the next run
            if tickets:
                sizes.append(self._collect(tickets, noted))
            submitter.join(0.001)
        num_texts, num_tokens = np.sum(sizes[:num_in_time], axis=0).tolist()
        return Ran(num_texts / took, num_tokens / took, sum(texts for texts, _ in sizes))

    def embed(self, sequences: Sequence[Ids]) -> NDArray[np.float32]:
        """float32 [B, D], each of length 1."""
        results = compute(self._engine, _batch(sequences))
        if isinstance(results, EngineError):
            raise results
        rows = results[OutputKind.POOLED].values
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    def _collect(self, tickets: dict[int, tuple[int, int]], noted: threading.Condition) -> tuple[int, int]:
        ticket, results = self._engine.collect()
        if isinstance(results, EngineError):
            raise results
        with noted:  # a batch can be finished before `submit` has noted it
            noted.wait_for(lambda: ticket in tickets)
            return tickets.pop(ticket)


class SentenceTransformers:
    """The library as its users call it: `encode`, batches of 32. It gets texts, for it has no way in for ids."""

    batch_tokens = 0

    def __init__(self, job: dict[str, Any]) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(job["options"]["path"], device="cpu")
        self._text_of = {tuple(ids): text for ids, text in zip(job["token_ids"], job["texts"], strict=True)}
        self.notes = ["tokenizing included"]

    def run(self, sequences: Sequence[Ids], seconds: float) -> Ran:
        """So many texts at a time, which the library sorts by length."""
        num_texts = num_tokens = 0
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            group = [sequences[(num_texts + n) % len(sequences)] for n in range(_GROUP)]
            self.embed(group)
            num_texts += len(group)
            num_tokens += sum(map(len, group))
        took = time.perf_counter() - began
        return Ran(num_texts / took, num_tokens / took, num_texts)

    def embed(self, sequences: Sequence[Ids]) -> NDArray[np.float32]:
        """float32 [B, D]"""
        texts = [self._text_of[tuple(ids)] for ids in sequences]
        rows: NDArray[np.float32] = self._model.encode(texts, show_progress_bar=False, normalize_embeddings=True)
        return rows


def _groups(sequences: Sequence[Ids], max_tokens: int) -> list[list[Ids]]:
    groups: list[list[Ids]] = [[]]
    num_tokens = 0
    for ids in sequences:
        if groups[-1] and num_tokens + len(ids) > max_tokens:
            groups.append([])
            num_tokens = 0
        groups[-1].append(ids)
        num_tokens += len(ids)
    return groups


def _batch(sequences: Sequence[Ids]) -> Batch:
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    return Batch("m", OutputKind.POOLED, np.concatenate([np.array(ids, np.int32) for ids in sequences]), cu_seqlens)


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


def _query_ms(embed: Callable[[Sequence[Ids]], object], query: Ids) -> list[float]:
    """Ascending."""
    latencies = []
    for _ in range(_NUM_QUERIES):
        began = time.perf_counter()
        embed([query])
        latencies.append(1000 * (time.perf_counter() - began))
    return sorted(latencies[_NUM_SKIPPED:])


def main() -> None:
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    subject = SentenceTransformers(job) if job["engine"] == "sentence-transformers" else Loaded(job)
    load_seconds = time.monotonic() - job["began"]
    sequences = job["token_ids"][: job["num_corpus"]]
    np.save(folder / "rows.npy", subject.embed(sequences[:_COMPARED]))
    np.save(folder / "pairs.npy", subject.embed(job["token_ids"][job["num_corpus"] + 1 :]))
    subject.run(sequences, _WARM_SECONDS)
    cpu, machine, began = _cpu(), machine_cpu_seconds(), time.perf_counter()
    ran = subject.run(sequences, job["seconds"])
    cpu, machine, seconds = _cpu() - cpu, machine_cpu_seconds() - machine, time.perf_counter() - began
    queries = _query_ms(subject.embed, job["token_ids"][job["num_corpus"]])
    result = {
        "load_seconds": load_seconds,
        "texts_per_second": ran.texts_per_second,
        "tokens_per_second": ran.tokens_per_second,
        "cpu_per_1000_texts": 1000 * cpu / ran.num_texts,
        "foreign_share": max(0.0, machine - cpu) / seconds / (os.cpu_count() or 1),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "query_p50_ms": percentile(queries, 50),
        "query_p99_ms": percentile(queries, 99),
        "batch_tokens": subject.batch_tokens,
        "notes": subject.notes,
    }
    (folder / "result.json").write_text(json.dumps(result))
    os._exit(0)  # an engine's threads may outlive it


if __name__ == "__main__":
    main()
