"""One step of `python -m benchmarks.gpu`, in a process of its own; benchmarks.gpu.plan starts it."""

import argparse
import contextlib
import importlib
import os
from pathlib import Path

import torch

from benchmarks.gpu import plan, report
from benchmarks.gpu.bench import Bench, BrokenDevice, TimeUp
from benchmarks.gpu.card import described
from benchmarks.gpu.clock import clock_of
from benchmarks.gpu.plan import ATTENTION, MODELS
from benchmarks.gpu.rows import Figure, Key, Rows
from benchmarks.gpu.shapes import MODELS as SHAPES
from benchmarks.gpu.shapes import TINY

_LOST = 3  # the exit code of a process that lost its device
_NUM_TEST_PROCESSES = 4  # more of them wait for the disk and for each other


def main() -> None:
    """Its rows are in the file as they come, also where it is interrupted."""
    parser = argparse.ArgumentParser()
    for name, kind in (("--rows", Path), ("--machine", str), ("--device", str), ("--until", float)):
        parser.add_argument(name, type=kind, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--step", nargs="+", required=True)
    with contextlib.suppress(KeyboardInterrupt):
        _run(parser.parse_args())


def _run(arguments: argparse.Namespace) -> None:
    part, *what = arguments.step
    rows = Rows(arguments.rows, machine=arguments.machine)
    if part == plan.TESTS:
        num_processes = 2 if arguments.tiny else min(_NUM_TEST_PROCESSES, os.cpu_count() or 1)
        log = arguments.rows.with_name("gpu-tests.txt")
        plan.run_tests(rows, log, num_processes=num_processes, until=arguments.until)
        return
    bench = Bench(clock_of(arguments.device), rows, arguments.tiny, arguments.until)
    rows.add(Key("machine", part, "", " ".join(what)), _described(rows.run, bench.clock.device))
    try:
        _measure(bench, part, what)
    except TimeUp:
        print("its time is up; the same command goes on from here", flush=True)
    except BrokenDevice as error:
        print(f"the device is lost to this process ({error})", flush=True)
        os._exit(_LOST)  # what would tidy up would only fail


def _measure(bench: Bench, part: str, what: list[str]) -> None:
    """Each part is a module, imported only where it is wanted."""
    if part == MODELS:
        shapes = {shape.name: shape for shape in (*SHAPES, *TINY)}
        asked = [(shapes[name], way) for name, way in zip(what[::2], what[1::2], strict=True)]
        importlib.import_module("benchmarks.gpu.model").run_all(bench, asked)
    elif part == ATTENTION:
        importlib.import_module("benchmarks.gpu.attention").run(bench, *what)
    else:
        importlib.import_module(f"benchmarks.gpu.{part.replace('-', '_')}").run(bench)


def _described(run: int, device: torch.device) -> list[Figure]:
    return [Figure("run", run, "", described(device)), Figure("versions", run, "", report.versions())]


if __name__ == "__main__":
    main()
