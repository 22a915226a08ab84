"""How long a server takes from its start to its first answer, and the memory of its processes when nothing was asked.

    python -m benchmarks.starts [--against CHECKOUT] [--flags FLAGS] [--rounds N] [--write]

The default model, with nothing in the cache of compiled models (a first start), and with what that start left there (a
later start). The memory (PSS) of all processes together and of each is read some seconds after the first answer. With
--against the server of another checkout of this repository takes turns with this one's. Flags are in one word, such as
--flags="--dtype float32". The compiled modules of both checkouts are made before.
"""

import argparse
import compileall
import contextlib
import shlex
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.measuring.processes import machine_cpu_seconds, pss_mb_by_title, tree_cpu_seconds
from benchmarks.measuring.report import PACKAGES, Report, parse
from benchmarks.measuring.servers import ROOT, RunningServer, embedline
from engine.machine import cores

THIS, OTHER = "this", "other"
STARTS = ("first", "later")
_IDLE_SECONDS = 3.0
_TEXT = "The ferry leaves at seven."
_PACKAGES = ("server", "engine", "wire", "tokenizer_pool", "batch_manager", "embedline")


def measure(root: Path, flags: list[str], cache: Path) -> dict[str, float]:
    """One start: its seconds, what others took of all cores meanwhile, and MB by process. Raises ServerFailed."""
    began, worked = time.perf_counter(), machine_cpu_seconds()
    server = RunningServer(embedline(*flags, root=root), cache=cache)
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        seconds = server.wait_for_answer(_TEXT)
        of_all, took = machine_cpu_seconds() - worked, time.perf_counter() - began
        foreign = max(0.0, of_all - tree_cpu_seconds(server.process.pid)) / took / cores.usable()
        time.sleep(_IDLE_SECONDS)
        sizes = pss_mb_by_title(server.process.pid)
    sizes_by_title = {f"{title} MB": size for title, size in sizes.items()}
    return {"seconds": seconds, "foreign CPU": foreign, "all MB": sum(sizes.values()), **sizes_by_title}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--flags", type=shlex.split, default=[])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parse(parser)
    roots = {THIS: ROOT} | ({OTHER: arguments.against.absolute()} if arguments.against else {})
    for root in roots.values():
        for package in _PACKAGES:
            compileall.compile_dir(root / package, quiet=1)
    report = Report("starts", "Starts and idle memory, all-MiniLM-L6-v2, on a CPU", packages=(*PACKAGES, "openvino"))
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    report.table("Every start")
    for number in range(arguments.rounds):
        for checkout, root in list(roots.items())[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory() as cache:
                for start in STARTS:
                    one = measure(root, arguments.flags, Path(cache))
                    found.setdefault((start, checkout), []).append(one)
                    report.row({"round": number, "start": start, "checkout": checkout, **_rounded(one)}, dict(one))
    report.table("Medians")
    for (start, checkout), each in sorted(found.items()):
        report.row({"start": start, "checkout": checkout, **_rounded(_medians(each))})
    if arguments.against:
        report.table("This checkout compared to the other")
        for start in STARTS:
            this, other = _medians(found[start, THIS]), _medians(found[start, OTHER])
            ratios = {name: f"{this[name] / other[name]:.2f}" for name in ("seconds", "all MB")}
            report.row({"start": start, **ratios})
    report.note("Seconds: from the start of the command to the first answer with embeddings. MB = 1e6 bytes of PSS.")
    report.note("Foreign CPU: the part of all cores that others had, the client included.")
    report.finish(write=arguments.write)


def _medians(each: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(one.get(name, 0.0) for one in each) for name in each[0]}


def _rounded(values: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.0f}" if name.endswith("MB") else f"{value:.2f}" for name, value in values.items()}


if __name__ == "__main__":
    main()
