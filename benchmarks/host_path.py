"""CPU time a request costs all processes of a server together, everything but the model being real.

    python -m benchmarks.host_path [--against CHECKOUT] [--write]

One text of 20 tokens, dimension 1024, 16 connections, the fake engine; raw bytes, base64 and floats. With --against the
server of another checkout, perhaps an older one, takes turns with this one's, in the order A B, B A and so on. A pair
during which others took more than 5 % of the machine's CPU is measured anew.
"""

import argparse
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measuring.load import Measured, drive
from benchmarks.measuring.load import measure as measure_load
from benchmarks.measuring.processes import cpu_by_title
from benchmarks.measuring.report import Report, described
from benchmarks.measuring.servers import ROOT, RunningServer, ServerFailed, embedline, running
from embedline.bench.load import Load
from embedline.bench.options import Target
from embedline.bench.requests import HttpRequest, post
from tests.server_e2e.expected import ids_of

TEXT = "the quick brown fox jumps over the lazy dog and then runs far away from us again today"
TEXTS = [TEXT.replace("the", str(number), 1) for number in range(256)]  # equal ones in flight would be computed once
ENCODINGS = ("bytes", "base64", "float")
CONNECTIONS = 16
THIS, OTHER = "this", "other"
MAX_FOREIGN_SHARE = 0.05  # of the machine's CPU time
MIN_PAIRS = 4
MAX_TRIES = 4  # of a pair
_FLAGS = ("--engine", "fake", "--fake-dim", "1024")


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one server."""

    measured: Measured
    micros: dict[str, float]  # CPU time a request, by process

    @property
    def sum_micros(self) -> float:
        """Of all processes."""
        return sum(self.micros.values())

    def cells(self) -> dict[str, object]:
        """What a table shows of it."""
        summary = self.measured.summary
        return {
            "requests/s": f"{summary.requests_per_second:.0f}",
            "failed": sum(summary.failures.values()),
            "p50 ms": f"{summary.percentile_ms(50):.2f}",
            "p99 ms": f"{summary.percentile_ms(99):.2f}",
            **{f"{title} µs": f"{micros:.0f}" for title, micros in self.micros.items()},
            "sum µs": f"{self.sum_micros:.0f}",
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Both servers, one right after the other."""

    this: Run
    other: Run

    @property
    def foreign_share(self) -> float:
        """The larger of the two."""
        return max(self.this.measured.foreign_share, self.other.measured.foreign_share)

    @property
    def is_disturbed(self) -> bool:
        """Whether others took too much for a comparison."""
        return self.foreign_share > MAX_FOREIGN_SHARE


def quiet_pair(measure: Callable[[], Pair]) -> Pair:
    """The first that is not disturbed, or the least disturbed of MAX_TRIES."""
    tries: list[Pair] = []
    while len(tries) < MAX_TRIES:
        tries.append(pair := measure())
        if not pair.is_disturbed:
            return pair
    return min(tries, key=lambda pair: pair.foreign_share)


def compare(encoding: str, pairs: Sequence[Pair]) -> dict[str, object]:
    """One row: medians over all pairs and this checkout's over the other's, below 1 where this one takes less CPU."""
    runs = [pair.this for pair in pairs], [pair.other for pair in pairs]
    this, other = (median(run.sum_micros for run in its) for its in runs)
    this_rate, other_rate = (median(run.measured.summary.requests_per_second for run in its) for its in runs)
    return {
        "encoding": encoding,
        "connections": CONNECTIONS,
        "pairs": len(pairs),
        "disturbed": sum(pair.is_disturbed for pair in pairs),
        "foreign CPU at most": f"{max(pair.foreign_share for pair in pairs):.1%}",
        "sum µs": f"{this:.0f}",
        "other's": f"{other:.0f}",
        "ratio": f"{this / other:.3f}",
        "requests/s": f"{this_rate:.0f}",
        "other's requests/s": f"{other_rate:.0f}",
        "ratio of requests/s": f"{this_rate / other_rate:.3f}",
    }


def measure(server: RunningServer, *, encoding: str, seconds: float, resting: RunningServer | None = None) -> Run:
    """What came back, and what it cost, while `resting` is up and has nothing to do.

    It is not stopped with SIGSTOP: when a server goes on, all its timers are due at once and all heartbeats are late,
    and it would be measured in a state that no server is in. An idle one only sends heartbeats: what they take is
    measured and stated.
    """
    bodies = [json.dumps({"input": text, "model": "m", "encoding_format": encoding}).encode() for text in TEXTS]
    target = Target("127.0.0.1", server.port, False, "")
    requests = [HttpRequest(post(target, "/v1/embeddings", body), 1) for body in bodies]
    drive(server.port, requests, Load(concurrency=CONNECTIONS, seconds=1))
    pid = server.process.pid
    beside = 0 if resting is None else resting.process.pid
    before = cpu_by_title(pid)
    measured = measure_load(pid, server.port, requests, Load(concurrency=CONNECTIONS, seconds=seconds), beside=beside)
    after = cpu_by_title(pid)
    summary = measured.summary
    if not summary.num_requests:
        raise ServerFailed(f"{server.name} answered no request: {summary.failures}")
    micros = {title: (after[title] - before.get(title, 0.0)) / summary.num_requests * 1e6 for title in after}
    return Run(measured, micros)


def measure_pair(servers: Sequence[RunningServer], *, encoding: str, seconds: float, is_turned: bool) -> Pair:
    """Both servers in turn; `is_turned`: the other's first."""
    this, other = servers
    turns = [(this, other), (other, this)]
    runs = [
        measure(server, encoding=encoding, seconds=seconds, resting=resting)
        for server, resting in (reversed(turns) if is_turned else turns)
    ]
    return Pair(*(reversed(runs) if is_turned else runs))


def write_rounds(report: Report, server: RunningServer, *, rounds: int, seconds: float) -> None:
    """This checkout's server alone."""
    for number in range(rounds):
        for encoding in ENCODINGS:
            run = measure(server, encoding=encoding, seconds=seconds)
            report.row({"round": number, "encoding": encoding, **run.cells()})


def write_pairs(report: Report, servers: Sequence[RunningServer], *, pairs: int, seconds: float) -> None:
    """Every measurement that counts, and the comparison."""
    found: dict[str, list[Pair]] = {encoding: [] for encoding in ENCODINGS}
    report.table("Every measurement")
    for number in range(pairs):
        for encoding, those in found.items():
            measured = partial(measure_pair, servers, encoding=encoding, seconds=seconds, is_turned=number % 2 == 1)
            those.append(pair := quiet_pair(measured))
            for name, run in ((THIS, pair.this), (OTHER, pair.other)):
                cells = {"pair": number, "encoding": encoding, "checkout": name, **run.cells()}
                cells["foreign CPU"] = f"{run.measured.foreign_share:.1%}"
                report.row({**cells, "disturbed": "yes" if pair.is_disturbed else ""})
    report.table("This checkout beside the other: medians")
    for encoding, those in found.items():
        report.row(compare(encoding, those))
    resting = max(
        run.measured.resting_share for those in found.values() for pair in those for run in (pair.this, pair.other)
    )
    report.note(
        f"Foreign CPU: what neither the servers nor the client took of all cores. A pair with more than "
        f"{MAX_FOREIGN_SHARE:.0%} is measured anew, at most {MAX_TRIES} times in all; what stays above is marked."
    )
    report.note(f"The server that was not asked idled, and took at most {resting:.2%} of all cores.")


def start(stack: contextlib.ExitStack, name: str, root: Path) -> RunningServer:
    """A server that has answered."""
    cache = stack.enter_context(tempfile.TemporaryDirectory())
    recipe = dataclasses.replace(embedline(*_FLAGS, name=name, root=root), folder=root)
    server = stack.enter_context(running(recipe, cache=Path(cache)))
    server.wait_for_answer(TEXT)
    return server


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="a folder with another version of the source")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="without --against")
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help=f"with --against, at least {MIN_PAIRS}")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    if arguments.pairs < MIN_PAIRS:
        parser.error(f"--pairs must be at least {MIN_PAIRS}")
    if arguments.against is not None and not (arguments.against / "embedline" / "__main__.py").is_file():
        parser.error(f"--against: {arguments.against} is no checkout")
    return arguments


def main() -> None:
    arguments = parse()
    title = f"One text of {len(ids_of(TEXT))} tokens, {CONNECTIONS} connections, fake engine, dimension 1024"
    report = Report("host-path" if arguments.against is None else "host-path-against", title)
    with contextlib.ExitStack() as stack:
        server = start(stack, THIS, ROOT)
        if arguments.against is None:
            write_rounds(report, server, rounds=arguments.rounds, seconds=arguments.seconds)
        else:
            servers = [server, start(stack, OTHER, arguments.against.resolve())]
            write_pairs(report, servers, pairs=arguments.pairs, seconds=arguments.seconds)
            report.note(f"The other checkout: {described(arguments.against)}. Below 1 this one takes less.")
    report.note("CPU µs a request: user and system time of each process, from /proc, over the requests it answered.")
    report.note("The client runs on the same machine and is not counted; absolute requests/s are a lower bound.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
