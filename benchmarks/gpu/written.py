"""The report of a part: its tables with what is needed to read them later, beside its CSV."""

import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import plot
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.machine import described, versions
from benchmarks.gpu.tables import tables, target_table, warning
from benchmarks.measuring.report import Table

TITLES = {
    "ceilings": "What the card can do: copying and products of matrices",
    "kernels": "Attention and the fused engine's kernels, each alone",
    "models": "Whole models on one GPU, without a server",
    "server": "The whole server, HTTP to GPU, under bulk and interactive load",
}
NOTES = {
    "ceilings": (
        "Medians on random data over buffers that exceed the cache together. Ceilings are held for 2 s each.",
        "Not shown: what quantizing rows costs (kernels), nor what other shapes than these models' would give.",
    ),
    "kernels": (
        "GB/s count each byte that has to be read or written once. Errors are norm(out - reference) / norm(reference) "
        "against float64 on a slice (attention) or against the same op in float32 (the others).",
        "Not shown: how kernels share the cache when they follow each other.",
    ),
    "models": (
        "Random weights, N(0, 0.02), of the true shapes: speed does not depend on them, cosines do. The quality "
        "gate is off; cosines are printed instead, and deep random models are a worst case for FP8.",
        "tokens/s are of the device alone, by replays of a graph with the inputs in place, at the number of tokens a "
        "batch that was fastest; `T*` is the smallest batch with 95 % of that.",
        "`share` is the model's operations (2 for each linear parameter, and attention, half where causal) over the "
        "rate of the product at 8192 x 8192 x 8192 in the same run; last-layer pruning is not taken off, and `share of "
        "work done` takes it off. FP8 is held against the FP8 rate, though attention is bf16 in it.",
        "Not shown: tokenizing, HTTP, real texts' distributions, quality on real weights.",
    ),
    "server": (
        "Generator and server share the machine's processors. Weights are random, texts are words of the tokenizer.",
        "Not shown: several GPUs, TLS, clients elsewhere on a network.",
    ),
}


def finish(bench: Bench, part: str, *, stopped: str) -> None:
    """Write the report and print its tables, the targets last."""
    text = _text(bench, part, stopped)
    path = bench.rows.path.with_suffix(".md")
    path.write_text(text)
    for table in (*tables(bench.rows), _targets(bench)):
        print("\n" + "\n".join(table.markdown()))
    print(f"\n{bench.rows.path}\n{path}" + (f"\n{stopped}" if stopped else ""), flush=True)


def _targets(bench: Bench) -> Table:
    return target_table(bench.rows, is_tiny=bench.is_tiny)


def _text(bench: Bench, part: str, stopped: str) -> str:
    image = plot.draw(bench.rows, part, is_tiny=bench.is_tiny)
    lines = [
        f"# {TITLES[part]}",
        *_paragraphs(warning(is_tiny=bench.is_tiny)),
        "",
        f"- Date: {datetime.date.today().isoformat()}",
        f"- Machine: {described(bench.clock.device)}",
        f"- Versions: {versions()}",
        f"- Command: `{_command()}`",
        f"- Rows: [{bench.rows.path.name}]({bench.rows.path.name}), of {bench.rows.run} runs",
        *([f"- Not complete: {stopped}"] if stopped else []),
        *_paragraphs([f"![{TITLES[part]}]({image.name})"] if image else []),
    ]
    found = [_targets(bench), *tables(bench.rows)]
    lines += [line for table in found if table.rows for line in ("", *table.markdown())]
    return "\n".join([*lines, "", *(f"- {note}" for note in NOTES[part]), ""])


def _paragraphs(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in ("", text)]


def _command() -> str:
    """Folders are left out: where somebody's files lie is nobody else's business."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "benchmarks.gpu", *words])
