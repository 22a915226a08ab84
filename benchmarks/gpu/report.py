"""The report: targets, tables, and what is needed to read them later, beside the CSV. Imports nothing that computes."""

import datetime
import importlib.metadata
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import attention_cases
from benchmarks.gpu.rows import Rows, join, machine_of
from benchmarks.gpu.tables import tables, target_table
from benchmarks.measuring.report import command

TOY = "toy sizes: not a measurement"
NOTHING = "none, because no step began"
_IN_EVERY_HEAD = ("run", "versions", "command")
_TITLE = "One GPU, and what the fused engine makes of it"
_SIZES = "## The fastest sizes of our attention, for `SIZES` in engine/fused/kernels/attention.py"
_PACKAGES = ("torch", "triton", "transformers", "sentence-transformers", "numpy")
_NOTES = (
    "Medians on random data over buffers that exceed the cache together. Ceilings are held for 2 s each, and measured "
    "again by each process that speaks of shares.",
    "attention, kernel: errors are norm(out - reference) / norm(reference) against float64 on a slice (attention) or "
    "against the same op in float32 (the others). GB/s count each byte that has to be read or written once.",
    "model: random weights, N(0, 0.02), of the true shapes: speed does not depend on them, cosines do. The quality "
    "gate is off; cosines are printed instead, and deep random models are a worst case for FP8. tokens/s are of the "
    "device alone, by a second of replays of a graph with the inputs in place, at the number of tokens a batch that "
    "was fastest, as is the SM clock; `T*` is the smallest batch with 95 % of that.",
    "share: the model's operations (2 for each linear parameter, and attention, half where causal) over the rate of "
    "the product at 8192 x 8192 x 8192 in the same process. Last-layer pruning is not taken off; `share of work done` "
    "takes it off. FP8 is held against the FP8 rate, though attention is bf16 in it.",
    "profile: events around each op and product while the host runs ahead, of all layers, divided by their number "
    "(the last one computes what pooled tokens need), and the same forward as a graph in between, at the same clocks.",
    "beside bulk: queries of 32 tokens, 50 a second, through the whole engine, without a server; bulk in batches as "
    "large as the server seals them beside queries, held against bulk alone.",
    "transformers sdpa: transformers' own forward with PyTorch's attention on full rows, nothing padded, as a graph; "
    "compiled: by torch.compile for that shape alone.",
    "heads: whole engines without a server, as many texts as one request has, again and again, host's part and copies "
    "included; weights as for model, of sparse models such that few words have a weight, as in trained ones.",
    "server: generator and server share the machine's processors. Weights are random, texts are the tokenizer's words.",
    "Not shown: real texts' distributions, quality on real weights, several GPUs, TLS.",
)


def of_files(files: Sequence[Path], folder: Path | None) -> None:
    """The report of rows that were measured before, with the date of the first; beside the file if there is one."""
    machine = machine_of(files[-1])
    if folder is None and len(files) == 1:
        finish(Rows(files[0], machine=machine), ())
        return
    first = datetime.date.fromtimestamp(Rows(files[0], machine=machine).began)
    path = path_in(folder or files[0].parent, machine, first)
    join(files, path)
    finish(Rows(path, machine=machine), ())


def path_in(folder: Path, machine: str, date: datetime.date) -> Path:
    """Of the rows; toy sizes say so in the file's name."""
    slug = "toy-not-a-measurement" if machine == TOY else slug_of(machine)
    return folder / f"gpu_{slug}_{date.isoformat()}.csv"


def finish(rows: Rows, troubles: Sequence[str]) -> None:
    """Write the report and print its tables, the targets last."""
    path, is_tiny = rows.path.with_suffix(".md"), rows.machine == TOY
    targets, found = target_table(rows, is_tiny=is_tiny), tables(rows)
    noted = {row.figure.metric: row.figure.note for row in rows.of_kind("machine")}
    others = [f"- {name.capitalize()}: {note}" for name, note in noted.items() if name not in _IN_EVERY_HEAD]
    lines = [
        f"# {_TITLE}",
        *(["", f"**{TOY.upper()}. The numbers check this benchmark's code and say nothing of any speed.**"] * is_tiny),
        "",
        f"- Date: {datetime.date.fromtimestamp(rows.began).isoformat() if noted else NOTHING}",
        f"- Machine: {noted.get('run', NOTHING)}",
        f"- Versions: {noted.get('versions', 'not noted')}",
        f"- Command: {noted.get('command', f'`{command()}`')}",
        f"- Rows: [{rows.path.name}]({rows.path.name})",
        *others,
        *(f"- Not well: {trouble}" for trouble in troubles),
    ]
    lines += [line for table in (targets, *found) if table.rows for line in ("", *table.markdown())]
    lines += ["", _SIZES, "", *(f"- {line}" for line in sizes)] if (sizes := attention_cases.best(rows)) else []
    path.write_text("\n".join([*lines, "", *(f"- {note}" for note in _NOTES), ""]))
    for table in (*found, targets):
        print("\n" + "\n".join(table.markdown()))
    print("\n" + "\n".join([*troubles, str(rows.path), str(path)]), flush=True)


def slug_of(card: str) -> str:
    """A card's name in a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower().replace("nvidia", "")).strip("-")


def versions() -> str:
    """Of what computes."""
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
