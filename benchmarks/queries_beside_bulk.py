"""How long single queries take beside bulk work, and what bulk loses by them, on a CPU.

    python -m benchmarks.queries_beside_bulk [--baseline FOLDER] [--rounds N] [--write]

all-MiniLM-L6-v2 with default flags. Queries of 10 tokens come at random times, ten a second on average, whether answers
come or not. Bulk: 8 clients with 32 mixed texts in each request, one request after the other. Each round has the
queries alone, bulk alone, and both at once. FOLDER holds another version of the source, which takes turns with this
one.
"""

import argparse
import contextlib
import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.measuring.load import Measured, measure_together, requests_of
from benchmarks.measuring.report import PACKAGES, Report
from benchmarks.measuring.servers import ROOT, RunningServer, embedline
from benchmarks.measuring.texts import Corpus, Prose
from benchmarks.peers.models import MINILM
from embedline.bench.load import Load, percentile
from embedline.bench.requests import HttpRequest
from engine.store.model_source import resolve

OURS, BASELINE = "Embedline", "baseline"
MAX_P99_MS, LEAST_SHARE_OF_BULK = 40.0, 0.85  # what is asked for on two cores
_QUERIES_A_SECOND = 10.0
_MAX_QUERIES = 1000  # in flight: more than ever are
_BULK_CLIENTS, _TEXTS_OF_BULK = 8, 32
_WARM_UP_SECONDS = 3.0


@dataclass
class Found:
    """What all rounds of one version come to."""

    alone_ms: list[float] = field(default_factory=list)  # latencies of queries
    beside_ms: list[float] = field(default_factory=list)
    bulk_alone: list[float] = field(default_factory=list)  # texts a second, of each round
    bulk_beside: list[float] = field(default_factory=list)


class Version:
    """A running server and the requests for it."""

    def __init__(self, name: str, server: RunningServer, queries: Corpus, bulk: Corpus) -> None:
        self.name = name
        self.found = Found()
        self._server = server
        self._queries = requests_of(server.port, queries, batch_size=1)
        self._bulk = requests_of(server.port, bulk, batch_size=_TEXTS_OF_BULK)

    def queries(self, seconds: float, *, seed: int) -> tuple[list[HttpRequest], Load]:
        """Open loop: a query that waits does not keep others from coming."""
        return self._queries, Load(concurrency=_MAX_QUERIES, seconds=seconds, rate=_QUERIES_A_SECOND, seed=seed)

    def bulk(self, seconds: float) -> tuple[list[HttpRequest], Load]:
        """Closed loop, more than the engine can do."""
        return self._bulk, Load(concurrency=_BULK_CLIENTS, seconds=seconds)

    def measure(self, *traffic: tuple[list[HttpRequest], Load]) -> list[Measured]:
        """Several loads at once."""
        return measure_together(self._server.process.pid, self._server.port, traffic)


def one_round(version: Version, report: Report, *, number: int, seconds: float) -> None:
    """Queries, bulk, and both."""
    queries, bulk = version.queries(seconds, seed=number), version.bulk(seconds)
    (alone,) = version.measure(queries)
    (bulk_alone,) = version.measure(bulk)
    beside, bulk_beside = version.measure(queries, bulk)
    found = version.found
    found.alone_ms += alone.summary.latencies_ms
    found.beside_ms += beside.summary.latencies_ms
    found.bulk_alone.append(bulk_alone.summary.texts_per_second)
    found.bulk_beside.append(bulk_beside.summary.texts_per_second)
    runs = (("queries", alone), ("bulk", bulk_alone), ("queries beside bulk", beside), ("bulk", bulk_beside))
    for load, measured in runs:
        summary = measured.summary
        report.row(
            {
                "round": number,
                "version": version.name,
                "load": load,
                "texts/s": f"{summary.texts_per_second:.1f}",
                "p50 ms": f"{summary.percentile_ms(50):.1f}",
                "p99 ms": f"{summary.percentile_ms(99):.1f}",
                "failed": sum(summary.failures.values()),
                "foreign CPU": f"{measured.foreign_share:.0%}",
            }
        )


def summary(version: Version) -> dict[str, object]:
    """One row; latencies are of all rounds together, rates the medians of the rounds."""
    found = version.found
    alone, beside = sorted(found.alone_ms), sorted(found.beside_ms)
    p99 = percentile(beside, 99)
    kept = median(found.bulk_beside) / median(found.bulk_alone)
    return {
        "version": version.name,
        "queries": len(beside),
        "alone p50 / p99 ms": f"{percentile(alone, 50):.1f} / {percentile(alone, 99):.1f}",
        "beside bulk p50 / p99 ms": f"{percentile(beside, 50):.1f} / {p99:.1f}",
        "p99 beside, times p50 alone": f"{p99 / percentile(alone, 50):.1f}",
        "bulk alone texts/s": f"{median(found.bulk_alone):.1f}",
        "beside queries": f"{median(found.bulk_beside):.1f} ({kept:.0%})",
        "holds": "yes" if p99 <= MAX_P99_MS and kept >= LEAST_SHARE_OF_BULK else "no",
    }


def versions_of(baseline: Path | None) -> dict[str, Path]:
    """The folder of each version's source."""
    return {OURS: ROOT} | ({BASELINE: baseline.resolve()} if baseline is not None else {})


def start(stack: contextlib.ExitStack, folders: dict[str, Path], corpora: Sequence[Corpus]) -> list[Version]:
    """All servers, warm. While one is measured the others idle."""
    queries, bulk = corpora
    versions = []
    for name, folder in folders.items():
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        recipe = dataclasses.replace(embedline(name=name, root=folder), folder=folder)
        server = RunningServer(recipe, cache=Path(cache))
        stack.callback(server.stop)
        server.wait_for_answer(queries.texts[0])
        version = Version(name, server, queries, bulk)
        version.measure(version.queries(_WARM_UP_SECONDS, seed=0), version.bulk(_WARM_UP_SECONDS))
        versions.append(version)
    return versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, help="a folder with another version of the source")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of a round's three runs")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    prose = Prose(resolve(MINILM).path / "tokenizer.json")
    corpora = prose.uniform("query", 512, num_tokens=10), prose.mixed(4096)
    report = Report("queries-beside-bulk", "Single queries beside bulk work", packages=(*PACKAGES, "openvino"))
    report.table("Every run")
    with contextlib.ExitStack() as stack:
        versions = start(stack, versions_of(arguments.baseline), corpora)
        for number in range(arguments.rounds):
            for version in versions:
                one_round(version, report, number=number, seconds=arguments.seconds)
    report.table("All rounds")
    for version in versions:
        report.row(summary(version))
    report.note(f"Bulk: {corpora[1]}. Queries: {corpora[0]}.")
    report.note(
        f"Holds: the p99 of queries beside bulk is at most {MAX_P99_MS:.0f} ms, "
        f"and bulk keeps {LEAST_SHARE_OF_BULK:.0%} of its texts a second."
    )
    report.note("The generator runs on the same cores. Foreign CPU: what others on the machine took of all its cores.")
    report.note("Not shown: GPUs, other machines and models, queries that come more often or in requests of several.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
