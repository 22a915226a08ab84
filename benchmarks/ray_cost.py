"""What Ray Serve's HAProxy costs: a server by itself, and the same server as a replica of Ray Serve, in turn.

    python -m benchmarks.ray_cost [--ray-python .clients/ray/bin/python] [--quick] [--write]

One text of about 20 tokens a request; the answer is a row of 384 float32 as raw bytes, as a MiniLM model gives it. The
fake engine computes at once, so what is left is HTTP. Each round puts every load on every server, one after the other.
"""

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.measuring.load import drive
from benchmarks.measuring.report import Report, parse
from benchmarks.measuring.servers import ROOT, Recipe, RunningServer, embedline, free_port, running
from embedline.bench.load import Load, Summary, summarize
from embedline.bench.options import Options, parse_url
from embedline.bench.requests import HttpRequest, prepare

DIMENSIONS = 384
TEXT = "The quick brown fox jumps over the lazy dog, again and again, until the evening comes."
MAX_COST_MS = 1.2  # at the median, with one connection
MIN_RATE = 1000  # requests a second
LOADS = (1, 4, 16, 32)  # connections
_FLAGS = ("--engine", "fake", "--fake-dim", str(DIMENSIONS), "--request-log", "off", "--frontends", "1")
_CONFIG = f"""
engine = "fake"
fake-dim = {DIMENSIONS}
request-log = "off"
frontends = 1
[ray]
num_cpus = 0.1
"""
NOTES = (
    f"Asked for: at most {MAX_COST_MS} ms at the median with one connection; at least {MIN_RATE:,} requests/s.",
    "`cost` is the median with Ray less that of the bare server in the same round; then the median of the rounds.",
    "Each figure is the median of the rounds, with the lowest and the highest. p99 is that of all rounds together.",
    "The load generator, HAProxy, servers and Ray's own processes share the cores; Ray idles beside the bare server.",
    "Not shown: a network, GPUs, several nodes, long bodies.",
)


@dataclasses.dataclass
class Case:
    """A server and what came of its rounds, by connections."""

    name: str
    server: RunningServer
    requests: list[HttpRequest]
    rounds: dict[int, list[Summary]]

    def medians_ms(self, connections: int) -> list[float]:
        return [one.percentile_ms(50) for one in self.rounds[connections]]


def on_ray(python: Path, folder: Path, *, replicas: int) -> Recipe:
    """`embedline ray serve` with a Ray of its own, whose files lie in this folder."""
    port = free_port()
    config = folder / "embedline.toml"
    config.write_text(f"{_CONFIG}port = {port}\nmin_replicas = {replicas}\nmax_replicas = {replicas}\n")
    proxy = {
        "CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "SOCKET_PATH": folder / "admin.sock",
        "SERVER_STATE_FILE": folder / "server-state",
        "SERVER_STATE_BASE": folder,
        "STATS_PORT": free_port(),
        "METRICS_PORT": free_port(),
    }
    variables = {
        "RAY_ADDRESS": "local",
        "RAY_TMPDIR": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
        "PYTHONPATH": str(ROOT),
        "EMBEDLINE_DEVICES": "cpu",
        **{f"RAY_SERVE_HAPROXY_{name}": str(value) for name, value in proxy.items()},
    }
    command = (str(python.absolute()), "-P", "-m", "embedline", "ray", "serve", str(config))
    name = f"Ray Serve, {replicas} replica{'s' * (replicas > 1)}"
    return Recipe(name, command, variables, port=port)


def measure(cases: Sequence[Case], *, rounds: int, seconds: float) -> None:
    """All loads on all servers, round by round."""
    for case in cases:
        drive(case.server.port, case.requests, Load(concurrency=16, seconds=2.0))  # warm
    for _ in range(rounds):
        for connections in LOADS:
            for case in cases:
                load = Load(concurrency=connections, seconds=seconds)
                case.rounds[connections].append(summarize(drive(case.server.port, case.requests, load)))


def tell(report: Report, bare: Case, others: Sequence[Case]) -> None:
    """A row for each server and load."""
    for connections in LOADS:
        for case in (bare, *others):
            found = case.rounds[connections]
            costs = np.subtract(case.medians_ms(connections), bare.medians_ms(connections)).tolist()
            every = [value for one in found for value in one.latencies_ms]
            failures = sum(sum(one.failures.values()) for one in found)
            row = {
                "server": case.name,
                "connections": connections,
                "p50 ms": _words(case.medians_ms(connections), 2),
                "cost ms": "" if case is bare else _words(costs, 2),
                "p99 ms": f"{np.percentile(every, 99):.2f}",
                "requests/s": _words([one.requests_per_second for one in found], 0),
                "errors": failures,
            }
            report.row(row)


def _words(values: Sequence[float], digits: int) -> str:
    return f"{np.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def compare(report: Report, python: Path, *, replicas: int, rounds: int, seconds: float) -> None:
    """The bare server beside so many replicas."""
    with ExitStack() as stack:
        # Sockets lie there, and their paths are short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)))
        cases = []
        for recipe in (embedline(*_FLAGS, name="bare"), on_ray(python, folder, replicas=replicas)):
            server = stack.enter_context(running(recipe, cache=folder / "cache"))
            server.wait_for_answer(TEXT)
            options = Options(url=f"127.0.0.1:{server.port}", batch_size=1, encoding="bytes", model="m")
            requests = prepare(options, parse_url(options.url), [TEXT])
            cases.append(Case(recipe.name, server, requests, {connections: [] for connections in LOADS}))
        measure(cases, rounds=rounds, seconds=seconds)
        tell(report, cases[0], cases[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray-python", type=Path, default=ROOT / ".clients/ray/bin/python", help="it has Ray")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    arguments = parse(parser)
    rounds, seconds = (1, 1.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    report = Report("ray-cost", "Ray Serve's HAProxy beside the bare server")
    for note in NOTES:
        report.note(note)
    settings = {name: value for name, value in os.environ.items() if name.startswith("RAY_SERVE_")}
    if settings:
        report.note("Set: " + ", ".join(f"`{name}={value}`" for name, value in settings.items()) + ".")
    for replicas in arguments.replicas:
        report.table(f"{replicas} replica{'s' * (replicas > 1)}")
        compare(report, arguments.ray_python, replicas=replicas, rounds=rounds, seconds=seconds)
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
