"""Measures a GPU and what the fused engine makes of it, step by step, each in a process of its own.

    python -m benchmarks.gpu [part ...] --out DIR

Without a part it is what a first GPU is asked: tests, ceilings, attention, kernels, and models with their profiles, in
at most 8 minutes. The same command goes on where it was stopped, also from CSVs that were carried (--resume FILE ...).
`report --resume FILE ... [--out DIR]` measures nothing and writes the report of these rows; it needs no GPU.
Installs nothing, fetches nothing, needs no weights. `--device cpu --tiny` runs the same code at toy sizes.
"""

import argparse
import contextlib
import datetime
import importlib
import itertools
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu import plan, report
from benchmarks.gpu.bench import Bench, BrokenDevice, TimeUp
from benchmarks.gpu.card import described
from benchmarks.gpu.clock import clock_of
from benchmarks.gpu.plan import FIRST, FIRST_MODELS, MODELS, PARTS
from benchmarks.gpu.rows import Figure, Key, Rows, join
from benchmarks.gpu.shapes import MODELS as SHAPES
from benchmarks.gpu.shapes import TINY, TINY_QWEN3, Shape
from benchmarks.gpu.targets import BF16, FP8, SENTENCE_TRANSFORMERS, WAYS
from benchmarks.measuring.report import RESULTS

_TOY_MODELS = ((TINY_QWEN3, FP8), (TINY_QWEN3, BF16), (TINY_QWEN3, SENTENCE_TRANSFORMERS))
REPORT = "report"  # not a part: it measures nothing
_INTERRUPTED = "interrupted; the same command goes on from here"
_LOST = 3  # the exit code of a process that lost its device
_SECONDS = 450.0  # beside them: the grace of the last step, and the report


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.step:
        with contextlib.suppress(KeyboardInterrupt):  # its rows are in the file
            _run_step(arguments)
        return
    if arguments.parts == [REPORT]:
        report.of_files(arguments.resume or parser.error("of what? --resume FILE ..."), arguments.out)
        return
    if arguments.device == "cpu" and not arguments.tiny:
        parser.error("--device cpu is for --tiny alone: there is nothing to learn from a CPU here")
    if arguments.device != "cpu" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA GPU; --device cpu --tiny checks this code without one")
    deadline = time.monotonic() + arguments.seconds
    path, machine = _rows(arguments)
    steps = plan.steps_of(arguments.parts or FIRST, _models(arguments))
    fixed = ["--rows", str(path), "--machine", machine, "--device", arguments.device, *["--tiny"] * arguments.tiny]
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have SIGINT ignored by what it starts with &
        signal.signal(number, signal.default_int_handler)
    troubles: list[str] = []
    try:
        troubles.extend(plan.run_all(steps, [sys.executable, "-m", "benchmarks.gpu", *fixed], deadline=deadline))
    except KeyboardInterrupt:
        troubles.append(_INTERRUPTED)
    report.finish(Rows(path, machine=machine), troubles)
    if _INTERRUPTED in troubles:
        raise SystemExit(128 + signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of: {', '.join(PARTS)}; or {REPORT}")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="parts of names: 8B 0.6B bge-m3 MiniLM")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help=f"parts of names: {', '.join(WAYS)}")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="toy sizes: a check of this code, not a measurement")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help=f"for all steps together ({_SECONDS:.0f})")
    parser.add_argument("--out", type=Path, help="where CSV, report and the tests' log go (benchmarks/results)")
    parser.add_argument("--resume", type=Path, nargs="+", metavar="FILE", help="CSVs of earlier runs, to go on from")
    for hidden, kind in (("--rows", Path), ("--machine", str), ("--until", float)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    return parser


def _models(arguments: argparse.Namespace) -> list[tuple[Shape, str]]:
    """Those of the first run unless others are named."""
    firsts = _TOY_MODELS if arguments.tiny else FIRST_MODELS
    if not arguments.models and not arguments.ways:
        return list(firsts)
    shapes = TINY if arguments.tiny else SHAPES
    asked = [one for name in arguments.models or [""] for one in shapes if name in one.name]
    ways = [one for name in arguments.ways or [FP8, BF16] for one in WAYS if one.startswith((name, f"fused {name}"))]
    if not asked or not ways:
        raise SystemExit(f"models are {', '.join(one.name for one in shapes)}; ways are {', '.join(WAYS)}")
    return list(itertools.product(asked, ways))


def _rows(arguments: argparse.Namespace) -> tuple[Path, str]:
    """A toy run's rows stay out of the results unless somebody says where they shall go."""
    folder = arguments.out or (Path(tempfile.mkdtemp(prefix="embedline-toy-")) if arguments.tiny else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    machine = report.TOY if arguments.tiny else torch.cuda.get_device_name(arguments.device)
    path = report.path_in(folder, machine, datetime.date.today())
    if arguments.resume is not None and not path.exists():
        join(arguments.resume, path)
    return path.resolve(), machine


def _described(run: int, device: torch.device) -> list[Figure]:
    return [Figure("run", run, "", described(device)), Figure("versions", run, "", report.versions())]


def _run_step(arguments: argparse.Namespace) -> None:
    """In a process of its own."""
    part, model, way = arguments.step
    rows = Rows(arguments.rows, machine=arguments.machine)
    if part == plan.TESTS:
        num_processes = 2 if arguments.tiny else min(8, os.cpu_count() or 1)
        log = arguments.rows.with_name("gpu-tests.txt")
        plan.run_tests(rows, log, num_processes=num_processes, until=arguments.until)
        return
    bench = Bench(clock_of(arguments.device), rows, arguments.tiny, arguments.until)
    rows.add(Key("machine", part, way, model), _described(rows.run, bench.clock.device))
    try:
        if part == MODELS:
            shape = next(one for one in (*SHAPES, *TINY) if one.name == model)
            importlib.import_module("benchmarks.gpu.model").run(bench, shape, way)
        else:
            importlib.import_module(f"benchmarks.gpu.{part.replace('-', '_')}").run(bench)
    except TimeUp:
        print("its time is up; the same command goes on from here", flush=True)
    except BrokenDevice as error:
        print(f"the device is lost to this process ({error})", flush=True)
        os._exit(_LOST)  # what would tidy up would only fail


if __name__ == "__main__":
    main()
