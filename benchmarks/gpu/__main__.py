"""Measures a GPU and what the fused engine makes of it, part by part; each goes on where it was stopped.

    python -m benchmarks.gpu ceilings|kernels|models|server [--fresh] [--out DIR]

Installs nothing, fetches nothing, needs no weights: any Python with torch and Triton will do. `--device cpu --tiny`
runs the same code at toy sizes in seconds, to check it.
"""

import argparse
import datetime
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.bench import Bench, BrokenDevice, TimeUp
from benchmarks.gpu.clock import clock_of
from benchmarks.gpu.machine import name_of, slug_of
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.written import finish
from benchmarks.measuring.report import RESULTS

# part -> the modules whose `run(bench)` are its measurements, in this order
_PARTS = {
    "ceilings": ("ceilings", "gemms"),
    "kernels": ("attention", "kernels"),
    "models": ("models", "cold_start"),
    "server": ("server",),
}


def main() -> None:
    arguments = _arguments()
    bench = _bench(arguments)
    stopped = ""
    try:
        for module in _PARTS[arguments.part]:
            importlib.import_module(f"benchmarks.gpu.{module}").run(bench)
    except TimeUp:
        stopped = f"{arguments.seconds:.0f} s are over; the same command goes on from here"
    except BrokenDevice as error:
        print(f"the device is lost to this process ({error}); another goes on behind it", flush=True)
        begin_again(bench)
    finish(bench, arguments.part, stopped=stopped)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=_PARTS)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="toy sizes: a check of this code, not a measurement")
    parser.add_argument("--fresh", action="store_true", help="begin anew, dropping this part's rows of today")
    parser.add_argument("--seconds", type=float, default=480.0, help="after which the part stops (480)")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # the same for a process that takes over
    parser.add_argument("--out", type=Path, help="where CSV and report go (benchmarks/results)")
    arguments = parser.parse_args()
    if arguments.device == "cpu" and not arguments.tiny:
        parser.error("--device cpu is for --tiny alone: there is nothing to learn from a CPU here")
    if arguments.device != "cpu" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA GPU; --device cpu --tiny checks this code without one")
    return arguments


def _bench(arguments: argparse.Namespace) -> Bench:
    """A toy run's rows stay out of the results unless somebody says where they shall go."""
    clock = clock_of(arguments.device)
    folder = arguments.out or (Path(tempfile.mkdtemp(prefix="embedline-toy-")) if arguments.tiny else RESULTS)
    slug = slug_of(clock.device, is_tiny=arguments.tiny)
    path = folder / f"gpu-{arguments.part}_{slug}_{datetime.date.today().isoformat()}.csv"
    machine = name_of(clock.device, is_tiny=arguments.tiny)
    rows = Rows(path, machine=machine, fresh=arguments.fresh and arguments.until is None)
    deadline = arguments.until or time.monotonic() + arguments.seconds
    return Bench(clock, rows, arguments.tiny, deadline)


def begin_again(bench: Bench) -> None:
    """In place of this process, whose CUDA context no call can mend. The row that broke it is written already."""
    sys.stdout.flush()
    words = [word for word in sys.argv[1:] if not word.startswith("--until=")]
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *words, f"--until={bench.deadline}"])


if __name__ == "__main__":
    main()
