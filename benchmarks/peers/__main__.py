"""Embedline beside other servers: same machine, same model, same texts, same generator, same answers.

    python -m benchmarks.peers [--model minilm|bge-base] [--infinity FOLDER] [--quick] [--write]

All servers stay up and one at a time is busy; the rounds take turns (A B C, A B C, …). FOLDER is a virtual environment
made by benchmarks/peers/make_env.sh; without one infinity-emb is left out, and the report says so.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measuring.load import measure, requests_of
from benchmarks.measuring.processes import tree_peak_rss_mb, tree_pss_mb
from benchmarks.measuring.report import PACKAGES, Report, parse
from benchmarks.measuring.servers import Recipe, RunningServer, ServerFailed, embedline, infinity, infinity_onnx, plain
from benchmarks.measuring.texts import Corpus, Prose
from benchmarks.peers.figures import Figures, draw, write_extremes, write_summary
from benchmarks.peers.models import MODELS, ExportFailed, PeerModel, export_onnx
from embedline.bench.load import Load

OURS, OURS_INT8 = "Embedline", "Embedline int8"
NOTES = (
    "infinity-emb: 0.0.78 with torch 2.13.0, transformers 4.57.6 and sentence-transformers 3.4.1, its own defaults. "
    "ONNX: exported and optimised (O2) by optimum 2.1.0; infinity's own call of the optimiser fails with it.",
    "FastAPI + sentence-transformers: benchmarks/peers/plain_server.py in Embedline's environment, one call of the "
    "library for all texts that wait, in batches of 8 of similar length.",
    "Texts a second: all answers of a run over the time from its first request to its last answer. JSON floats.",
    "Tokens a second: texts a second times the mean length of the texts that are sent in turn.",
    "CPU seconds: user and system time of the server's processes over all texts that they answered. Foreign CPU: what "
    "others on the machine took of all its cores meanwhile, idle servers included.",
    "PSS counts what processes share once; the peak of RSS is the sum of each process's own highest, shared pages "
    "counted in each.",
    "First start: nothing in the server's own cache of compiled models; the weights may be in the system's file cache.",
    "Not shown: other machines, models of other shapes, a client on another machine, answers other than JSON floats.",
)
_NUM_COMPARED = 64  # texts whose rows are compared


@dataclass(frozen=True, slots=True)
class Case:
    """A load that every server gets."""

    name: str
    corpus: Corpus
    batch_size: int
    concurrency: int
    seconds: float


def cases(model: str, prose: Prose, *, is_quick: bool) -> list[Case]:
    """Those of every round. The larger model gets fewer texts at a time, or answers would take a minute."""
    mixed, query = prose.mixed(4096), prose.uniform("query", 512, num_tokens=10)
    if is_quick:
        return [Case("mixed, 64 x 1", mixed, 1, 64, 4.0), Case("lone query", query, 1, 1, 2.0)]
    short = prose.uniform("short", 4096, num_tokens=16)
    eighty = prose.uniform("80 tokens", 2048, num_tokens=80)
    long = prose.uniform("long", 1024, num_tokens=256)
    if model == "bge-base":
        return [
            Case("mixed, 64 x 1", mixed, 1, 64, 15.0),
            Case("lone query", query, 1, 1, 5.0),
            Case("short, 64 x 1", short, 1, 64, 8.0),
            Case("80 tokens, 64 x 1", eighty, 1, 64, 12.0),
            Case("long, 16 x 1", long, 1, 16, 12.0),
        ]
    return [
        Case("mixed, 64 x 1", mixed, 1, 64, 8.0),
        Case("mixed, 8 x 32", mixed, 32, 8, 8.0),
        Case("lone query", query, 1, 1, 4.0),
        Case("short, 64 x 1", short, 1, 64, 5.0),
        Case("short, 8 x 32", short, 32, 8, 5.0),
        Case("80 tokens, 64 x 1", eighty, 1, 64, 8.0),
        Case("80 tokens, 8 x 32", eighty, 32, 8, 8.0),
        Case("long, 64 x 1", long, 1, 64, 8.0),
        Case("long, 8 x 32", long, 32, 8, 8.0),
    ]


class Comparison:
    """The servers that run, and the report that fills."""

    def __init__(self, report: Report, *, is_quick: bool) -> None:
        self.servers: list[RunningServer] = []
        self.figures: list[Figures] = []
        self._report = report
        self._is_quick = is_quick

    def start(self, recipe: Recipe, stack: contextlib.ExitStack, first_text: str) -> None:
        """Start it with an empty cache and again with a filled one, which then stays; time both to the first answer."""
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        seconds: list[str] = []
        with contextlib.ExitStack() as attempt:
            try:
                for is_last in (True,) if self._is_quick else (False, True):
                    server = RunningServer(recipe, cache=cache)
                    attempt.callback(server.stop)
                    seconds.append(f"{server.wait_for_answer(first_text):.1f}")
                    if not is_last:
                        attempt.close()
            except ServerFailed as error:
                self._report.row({"server": recipe.name, "error": error})
                return
            stack.enter_context(attempt.pop_all())
        self.servers.append(server)
        names = ("first start s",) if self._is_quick else ("first start s", "second start s")
        self._report.row({"server": recipe.name, **dict(zip(names, seconds, strict=True))})

    def compare_rows(self, texts: Sequence[str], reference: str) -> None:
        """Cosines between the rows of each server and those of the reference."""
        rows = {}
        for server in self.servers:
            try:
                rows[server.name] = server.embed(texts)
            except (ServerFailed, OSError) as error:
                self._report.row({"server": server.name, "error": error})
        against = rows.get(reference)
        for name, values in rows.items():
            if against is None or name == reference:
                continue
            cosines = np.einsum("nd,nd->n", values, against) / (
                np.linalg.norm(values, axis=1) * np.linalg.norm(against, axis=1)
            )
            lowest, mean = f"{cosines.min():.6f}", f"{cosines.mean():.6f}"
            self._report.row({"server": name, "against": reference, "lowest cosine": lowest, "mean cosine": mean})

    def run(self, case: Case, round_number: int) -> None:
        """Every server gets the load, one after the other."""
        for server in self.servers:
            requests = requests_of(server.port, case.corpus, batch_size=case.batch_size)
            load = Load(concurrency=case.concurrency, seconds=case.seconds)
            measured = measure(server.process.pid, server.port, requests, load)
            figures = Figures(str(round_number), case.name, server.name, case.corpus.tokens_per_text, measured)
            self.figures.append(figures)
            self._report.row(figures.row(), figures.raw())

    def memory(self) -> None:
        """After everything that was asked of them."""
        for server in self.servers:
            sizes = {"PSS MB": tree_pss_mb(server.process.pid), "peak RSS MB": tree_peak_rss_mb(server.process.pid)}
            self._report.row({"server": server.name, **{name: f"{size:.0f}" for name, size in sizes.items()}})


def warm_up(comparison: Comparison, case: Case) -> None:
    """Some seconds of load for each, which nobody counts."""
    for server in comparison.servers:
        requests = requests_of(server.port, case.corpus, batch_size=case.batch_size)
        measure(server.process.pid, server.port, requests, Load(concurrency=case.concurrency, seconds=2.0))


def recipes(model: PeerModel, folder: Path, onnx: Path, environment: Path, report: Report) -> list[Recipe]:
    """Those that can be started here. int8 is left out for random weights: their rows say nothing of its fidelity."""
    ours = ("--model-id", str(folder), "--served-model-name", "m")
    found = [embedline(*ours, name=OURS)]
    if (environment / "bin/infinity_emb").is_file():
        found.append(infinity(environment, folder))
        try:
            exported = export_onnx(environment, folder, onnx)
            found.append(infinity_onnx(environment, exported, pooling=model.pooling))
        except ExportFailed as error:
            report.note(f"infinity-emb (ONNX) is missing: {error}")
    else:
        report.note(f"infinity-emb is missing: benchmarks/peers/make_env.sh {environment} makes its environment.")
    found.append(plain(folder))
    return found if model.name == "bge-base" else [*found, embedline(*ours, "--quantization", "int8", name=OURS_INT8)]


def compare(report: Report, arguments: argparse.Namespace) -> list[Figures]:
    """The whole comparison."""
    comparison = Comparison(report, is_quick=arguments.quick)
    with contextlib.ExitStack() as stack:
        made, onnx = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        model = MODELS[arguments.model]
        folder = model.make(made)
        loads = cases(model.name, Prose(folder / "tokenizer.json"), is_quick=arguments.quick)
        lone_query = next(case for case in loads if case.name == "lone query")
        report.table("Seconds from the start of the process to the first answer")
        for recipe in recipes(model, folder, onnx, arguments.infinity, report):
            comparison.start(recipe, stack, lone_query.corpus.texts[0])
        report.table(f"Do the rows agree? {_NUM_COMPARED} mixed texts, float32")
        comparison.compare_rows(loads[0].corpus.texts[:_NUM_COMPARED], plain(folder).name)
        warm_up(comparison, loads[0])
        report.table("Every run")
        for round_number in range(1 if arguments.quick else arguments.rounds):
            for case in loads:
                comparison.run(case, round_number)
        report.table("Memory after all runs")
        comparison.memory()
    for case in loads:
        report.note(f"{case.name}: {case.concurrency} requests of {case.batch_size} in flight; {case.corpus}.")
    return comparison.figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument("--infinity", type=Path, default=Path(".peers/infinity"), metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parse(parser)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as any other end: the servers are stopped
    packages = (*PACKAGES, "openvino", "sentence-transformers")
    title = f"Embedline beside other servers, {MODELS[arguments.model].title}, on a CPU"
    report = Report(f"peers-{arguments.model}", title, packages=packages)
    measured = compare(report, arguments)
    report.table("Medians")
    write_summary(report, measured, ours=OURS)
    report.table("Texts a second, at best and at worst")
    write_extremes(report, measured, ours=OURS)
    for note in NOTES:
        report.note(note)
    if arguments.write:
        draw(report.plot_path(), measured)
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
