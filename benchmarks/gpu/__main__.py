"""Measures a GPU and what the fused engine makes of it, step by step, each in a process of its own.

    python -m benchmarks.gpu [part ...] --out DIR

Without a part it is what a GPU is asked in at most 510 seconds: ceilings, models with their profiles, probes,
attention, other people's engines, tests. The same command goes on where it was stopped, also from CSVs that were
carried (--resume FILE ...). `report --resume FILE ...` measures nothing and writes the report of these rows. Installs
nothing, fetches nothing, needs no weights. `--device cpu --tiny` runs the same code at toy sizes.
"""

import argparse
import datetime
import importlib
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import plan, report
from benchmarks.gpu.plan import KNOWN_MODELS, NEW_MODELS, PARTS, PEERS, Models, Step
from benchmarks.gpu.rows import Figure, Key, Rows, join
from benchmarks.gpu.shapes import MODELS as SHAPES
from benchmarks.gpu.shapes import TINY, TINY_BERT, TINY_QWEN3
from benchmarks.gpu.targets import BF16, COMPILED, FP8, GRAPH, SENTENCE_TRANSFORMERS, WAYS
from benchmarks.measuring.report import RESULTS

_TOY_MODELS: Sequence[Models] = (
    ((TINY_QWEN3, FP8),),
    ((TINY_QWEN3, BF16), (TINY_BERT, BF16)),
    ((TINY_QWEN3, GRAPH), (TINY_BERT, COMPILED), (TINY_QWEN3, SENTENCE_TRANSFORMERS)),
)
_IMPORTS = ("torch", "benchmarks.gpu.step", "benchmarks.gpu.model", "transformers.models.qwen3.modeling_qwen3")
_REPORT = "report"  # not a part: it measures nothing
_INTERRUPTED = "interrupted; the same command goes on from here"
_SECONDS = 470.0  # from the start of this process; beside them: the grace of the last step, and the report


def main() -> None:
    deadline = time.monotonic()
    parser = _parser()
    arguments = parser.parse_args()
    deadline += arguments.seconds
    if arguments.parts == [_REPORT]:
        report.of_files(arguments.resume or parser.error("of what? --resume FILE ..."), arguments.out)
        return
    if arguments.device == "cpu" and not arguments.tiny:
        parser.error("--device cpu is for --tiny alone: there is nothing to learn from a CPU here")
    imported = _import_alone()
    if arguments.device != "cpu" and not _has_gpu():
        parser.error("torch sees no CUDA GPU; --device cpu --tiny checks this code without one")
    path, machine = _rows(arguments)
    Rows(path, machine=machine).add(Key("import", "torch and transformers"), [Figure("alone", imported, "s")])
    print(f"a report of what there is so far: python -m benchmarks.gpu {_REPORT} --resume {path}", flush=True)
    fixed = ["--rows", str(path), "--machine", machine, "--device", arguments.device, *["--tiny"] * arguments.tiny]
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have SIGINT ignored by what it starts with &
        signal.signal(number, signal.default_int_handler)
    command = [sys.executable, "-m", "benchmarks.gpu.step", *fixed]
    troubles: list[str] = []
    try:
        troubles.extend(plan.run_all(_steps(arguments), command, path, deadline=deadline))
    except KeyboardInterrupt:
        troubles.append(_INTERRUPTED)
    report.finish(Rows(path, machine=machine), troubles)
    if _INTERRUPTED in troubles:
        raise SystemExit(128 + signal.SIGINT)


def _import_alone() -> float:
    """Seconds. On a fresh machine it reads from a cold disk, which is faster before others want to read the same."""
    began = time.perf_counter()
    for name in _IMPORTS:
        importlib.import_module(name)
    return time.perf_counter() - began


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _steps(arguments: argparse.Namespace) -> list[Step]:
    """Those of the first run unless others are named."""
    firsts = _TOY_MODELS if arguments.tiny else (NEW_MODELS, KNOWN_MODELS, PEERS)
    if not arguments.parts and not arguments.models and not arguments.ways:
        return plan.first_steps(firsts)
    models = _named(arguments) if arguments.models or arguments.ways else list(itertools.chain(*firsts))
    return plan.steps_of(arguments.parts or [plan.MODELS], models)


def _named(arguments: argparse.Namespace) -> Models:
    shapes = TINY if arguments.tiny else SHAPES
    asked = [one for name in arguments.models or [""] for one in shapes if name in one.name]
    ways = [one for name in arguments.ways or [FP8, BF16] for one in WAYS if one.startswith((name, f"fused {name}"))]
    if not asked or not ways:
        raise SystemExit(f"models are {', '.join(one.name for one in shapes)}; ways are {', '.join(WAYS)}")
    return list(itertools.product(asked, ways))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of: {', '.join(PARTS)}; or {_REPORT}")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="parts of names: 8B 0.6B bge-m3 MiniLM")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help=f"parts of names: {', '.join(WAYS)}")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="toy sizes: a check of this code, not a measurement")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help=f"for all steps together ({_SECONDS:.0f})")
    parser.add_argument("--out", type=Path, help="where CSV, report and the tests' log go (benchmarks/results)")
    parser.add_argument("--resume", type=Path, nargs="+", metavar="FILE", help="CSVs of earlier runs, to go on from")
    return parser


def _rows(arguments: argparse.Namespace) -> tuple[Path, str]:
    """A toy run's rows stay out of the results unless somebody says where they shall go."""
    folder = arguments.out or (Path(tempfile.mkdtemp(prefix="embedline-toy-")) if arguments.tiny else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    import torch

    machine = report.TOY if arguments.tiny else torch.cuda.get_device_name(arguments.device)
    path = report.path_in(folder, machine, datetime.date.today())
    if arguments.resume is not None and not path.exists():
        join(arguments.resume, path)
    return path.resolve(), machine


if __name__ == "__main__":
    main()
