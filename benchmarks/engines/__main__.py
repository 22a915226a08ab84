"""Engines alone, against the machine's fp32 limit measured in the same run.

    python -m benchmarks.engines [--quick] [--write]

Each engine is loaded in a process of its own and gets packed batches of mixed texts as the batch manager makes them.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines.fma_peak import Peak, measure_peak
from benchmarks.measuring.graded_pairs import correlation, graded_pairs
from benchmarks.measuring.report import PACKAGES, Report, parse
from benchmarks.measuring.texts import Corpus, Prose
from engine import registry
from engine.machine import cores
from engine.messages import LoadOptions
from engine.store.model_source import resolve

ROOT = Path(__file__).resolve().parents[2]
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
REFERENCE = "sentence-transformers"
_PATIENCE = 180.0  # seconds beyond the run itself
NOTES = (
    "Batches: as large as the server makes them for this engine, in the order in which texts come, submitted when the "
    "engine takes them. sentence-transformers: `encode`, batches of 32, 256 texts at a time, tokenizing included.",
    "Load: from the start of the process until the engine has computed its warm-up batches; the first load finds no "
    "compiled model in a cache, the next ones do. The weights may be in the system's file cache.",
    "CPU seconds: of the whole process over the texts that it embedded. Lone query: 10 tokens, one after the other.",
    "Of the limit by CPU time: what a CPU second computed, of what it could; neighbours change it less.",
    "Operations: two for each multiply-add of the linear layers and of attention, over real tokens; what is computed "
    "on padding does not count. int8 is shown against the fp32 limit.",
    "Lowest cosine: over 64 mixed texts, to the library's rows. Spearman: 100 times the rank correlation with the "
    "grades of 80 pairs of sentences of our own.",
    "Not shown: HTTP, tokenizing and batching (see the report on peers), other models, a machine that others use.",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine and how it is loaded."""

    name: str
    engine: str
    quantization: str = "none"
    dtype: str = "float32"


SUBJECTS = (
    Subject("openvino", "openvino"),
    Subject("openvino bfloat16", "openvino", dtype="bfloat16"),
    Subject("transformers", "transformers"),
    Subject("openvino int8", "openvino", "int8"),
    Subject(REFERENCE, REFERENCE),
)


class EngineFailed(Exception):
    """One line."""


def gflop(config: dict[str, Any], corpus: Corpus) -> float:
    """To compute the whole corpus once: linear layers and attention of a BERT, embeddings and pooling left out."""
    hidden, inner, layers = (config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    linear = 2 * (4 * hidden * hidden + 2 * hidden * inner) * layers
    attention = 2 * 2 * hidden * layers  # for each token and each token it looks at
    flop: int = sum(len(ids) * (linear + attention * len(ids)) for ids in corpus.token_ids)
    return 1e-9 * flop


def run_alone(subject: Subject, corpora: Sequence[Corpus], *, cache: Path, seconds: float) -> dict[str, Any]:
    """Start a process, let it measure, and read what it found. Corpora: mixed texts, one query, the graded pairs.

    Raises EngineFailed.
    """
    options = LoadOptions(
        device="cpu",
        path=str(resolve(MODEL).path),
        dtype=subject.dtype,
        quantization=subject.quantization,
        cache_dir=str(cache),
        max_num_tokens=16_384,
        max_num_seqs=1024,
        num_threads=cores.usable(),
        own={registry.OPENVINO: {"compiles_in_child": False}},
    )
    job = {
        "engine": subject.engine,
        "options": dataclasses.asdict(options),
        "texts": [text for corpus in corpora for text in corpus.texts],
        "token_ids": [ids for corpus in corpora for ids in corpus.token_ids],
        "num_corpus": len(corpora[0].texts),
        "seconds": seconds,
        "began": time.monotonic(),
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "benchmarks.engines.process", folder]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        try:
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=seconds + _PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"not done after {seconds + _PATIENCE:.0f} s") from None
        if ended.returncode:
            raise EngineFailed((ended.stderr.strip().splitlines() or ["it said nothing"])[-1])
        found: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
        return {**found, **{name: np.load(Path(folder) / f"{name}.npy") for name in ("rows", "pairs")}}


def lowest_cosine(rows: NDArray[np.float32], reference: NDArray[np.float32] | None) -> str:
    """Of rows of length 1."""
    return "" if reference is None else f"{np.einsum('nd,nd->n', rows, reference).min():.6f}"


class Runs:
    """What was found, by engine, and the report that fills."""

    def __init__(self, report: Report, peak: Peak, corpus: Corpus, gflop_per_token: float) -> None:
        self.found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._report = report
        self._peak = peak
        self._corpus = corpus
        self._gflop_per_token = gflop_per_token
        self._grades = graded_pairs().grades

    def cells(self, found: dict[str, Any]) -> dict[str, object]:
        """Of one run, or of the middle of several."""
        tokens_per_second, cpu = found["tokens_per_second"], found["cpu_per_1000_texts"]
        share = tokens_per_second * self._gflop_per_token / self._peak.gflops
        gflop_per_text = self._gflop_per_token * self._corpus.tokens_per_text
        share_by_cpu = 1000 * gflop_per_text / cpu / (self._peak.gflops / self._peak.num_cores)
        return {
            "texts/s": f"{found['texts_per_second']:.1f}",
            "tokens/s": f"{tokens_per_second:.0f}",
            "of the fp32 limit": f"{share:.1%}",
            "of the limit by CPU time": f"{share_by_cpu:.1%}",
            "CPU s/1000 texts": f"{cpu:.2f}",
            "query p50 ms": f"{found['query_p50_ms']:.2f}",
            "query p99 ms": f"{found['query_p99_ms']:.2f}",
            "load s": f"{found['load_seconds']:.1f}",
            "peak RSS MB": f"{found['peak_rss_mb']:.0f}",
            "batch tokens": f"{found['batch_tokens'] or ''}",
            "foreign CPU": f"{found['foreign_share']:.0%}",
        }

    def add(self, subject: Subject, round_number: int, found: dict[str, Any]) -> None:
        """And print it."""
        self.found[subject.name].append(found)
        self._report.row({"round": round_number, "engine": subject.name, **self.cells(found)})

    def write_medians(self) -> None:
        """A row an engine. Load and memory of each round: the first one converts and compiles, later ones need not."""
        reference = self.found[REFERENCE][0] if self.found[REFERENCE] else None
        for name, runs in self.found.items():
            if not runs:
                continue
            numbers = (key for key, value in runs[0].items() if isinstance(value, int | float))
            middle = {key: statistics.median(run[key] for run in runs) for key in numbers}
            by_round = {
                "load s": ", ".join(f"{run['load_seconds']:.1f}" for run in runs),
                "peak RSS MB": ", ".join(f"{run['peak_rss_mb']:.0f}" for run in runs),
            }
            against = {
                "texts/s against the library": _ratio(middle, self.found[REFERENCE]),
                "lowest cosine": lowest_cosine(runs[0]["rows"], reference["rows"] if reference else None),
                "Spearman": f"{correlation(self._grades, runs[0]['pairs']):.2f}",
            }
            self._report.row({"engine": name, **self.cells(middle), **by_round, **against})
            for note in runs[0]["notes"]:
                self._report.note(f"{name}: {note}")

    def draw(self, path: Path) -> None:
        """Texts a second with the limit, the limit reached, and the lone query."""
        from benchmarks.measuring.plots import bars

        def panel(key: str, scale: float = 1.0) -> dict[str, dict[str, float]]:
            return {
                name: {"": scale * statistics.median(run[key] for run in runs)} for name, runs in self.found.items()
            }

        percent = 100 * self._gflop_per_token / self._peak.gflops
        bars(
            path,
            [
                ("mixed texts/s (more is better)", panel("texts_per_second")),
                ("% of the fp32 limit (more is better)", panel("tokens_per_second", percent)),
                ("lone query, p50 ms (less is better)", panel("query_p50_ms")),
            ],
        )


def _ratio(middle: dict[str, float], reference: Sequence[dict[str, Any]]) -> str:
    if not reference:
        return ""
    return f"{middle['texts_per_second'] / statistics.median(run['texts_per_second'] for run in reference):.2f} x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    arguments = parse(parser)
    rounds, seconds = (1, 4.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    folder = resolve(MODEL).path
    prose = Prose(folder / "tokenizer.json")
    corpus, query = prose.mixed(2048), prose.uniform("query", 1, num_tokens=10)
    corpora = (corpus, query, prose.given("graded pairs", graded_pairs().texts))
    work = gflop(json.loads((folder / "config.json").read_text()), corpus)
    peak = measure_peak()
    packages = (*PACKAGES, "openvino", "sentence-transformers")
    report = Report("engines", "Engines alone, all-MiniLM-L6-v2 on a CPU", packages=packages)
    limit = peak.gflops / work * len(corpus.texts)
    report.note(f"fp32 limit: {peak.gflops:.0f} GFLOP/s ({peak.how}); {limit:.0f} of these texts a second.")
    report.note(f"{corpus}; {1000 * work / corpus.num_tokens:.2f} MFLOP a token.")
    runs = Runs(report, peak, corpus, work / corpus.num_tokens)
    report.table("Every run")
    with tempfile.TemporaryDirectory() as caches:
        for round_number in range(rounds):
            for subject in SUBJECTS:
                try:
                    cache = Path(caches) / subject.name.replace(" ", "-")
                    found = run_alone(subject, corpora, cache=cache, seconds=seconds)
                except EngineFailed as error:
                    report.row({"round": round_number, "engine": subject.name, "error": error})
                else:
                    runs.add(subject, round_number, found)
    report.table("Medians")
    runs.write_medians()
    for note in NOTES:
        report.note(note)
    if arguments.write:
        runs.draw(report.plot_path())
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
