"""CPU time a request costs all processes of a server together, everything but the model being real.

    python -m benchmarks.host_path [--against CHECKOUT] [--flags FLAGS] [--against-flags FLAGS] [--engine fake|auto]
                                   [--cases NAME …] [--write]

One text of 20 tokens, dimension 1024, 16 connections, the fake engine; raw bytes, base64 and floats. The same text on
one connection, at once after the last answer and 20 ms after it, and 128 texts of 34 tokens a request. With
--against the server of another checkout, perhaps an older one, takes turns with this one's, in the order A B, B A and
so on. A pair during which others took more than 5 % of the machine's CPU is measured anew. Flags are those of the two
servers, in one word, such as --flags="--topology compact"; two topologies are compared by `--against .`. With
--engine auto the default model is computed as well.
"""

import argparse
import contextlib
import dataclasses
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measuring.load import Measured, drive
from benchmarks.measuring.load import measure as measure_load
from benchmarks.measuring.processes import cpu_by_title
from benchmarks.measuring.report import Report, described
from benchmarks.measuring.servers import ROOT, ROUTE, RunningServer, ServerFailed, embedline, running
from embedline.bench.load import Load
from embedline.bench.options import Target
from embedline.bench.requests import HttpRequest, post
from tests.server_e2e.expected import ids_of

TEXT = "the quick brown fox jumps over the lazy dog and then runs far away from us again today"
TEXTS = [TEXT.replace("the", str(number), 1) for number in range(256)]  # equal ones in flight would be computed once
LONGER = " ".join([TEXT, *TEXT.split()[:12]])
THIS, OTHER = "this", "other"
MAX_FOREIGN_SHARE = 0.05  # of the machine's CPU time
MIN_PAIRS = 4
MAX_TRIES = 4  # of a pair
_FLAGS = {"fake": ("--engine", "fake", "--fake-dim", "1024"), "auto": ()}


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """What is asked, and how."""

    name: str
    encoding: str
    connections: int = 16
    batch_size: int = 1  # texts a request
    gap: float = 0.0  # seconds between an answer and the next request

    def requests(self, port: int) -> list[HttpRequest]:
        """One of each body: 256, or 8 of those with many texts, which are all different."""
        target, inputs = Target("127.0.0.1", port, False, ""), list[object](TEXTS)
        if self.batch_size > 1:
            inputs = [[f"{number} {at} {LONGER}" for at in range(self.batch_size)] for number in range(8)]
        bodies = [{"input": each, "model": "m", "encoding_format": self.encoding} for each in inputs]
        return [HttpRequest(post(target, ROUTE, json.dumps(body).encode()), self.batch_size) for body in bodies]


CASES = (
    Case("bytes", "bytes"),
    Case("base64", "base64"),
    Case("float", "float"),
    Case("one connection", "base64", connections=1),
    Case("20 ms after the last answer", "base64", connections=1, gap=0.02),
    Case("128 texts a request", "base64", connections=4, batch_size=128),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one server."""

    measured: Measured
    micros: dict[str, float]  # CPU time a text, by process

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


def compare(case: Case, pairs: Sequence[Pair]) -> dict[str, object]:
    """One row: medians over all pairs and this checkout's over the other's, below 1 where this one takes less CPU."""
    runs = [pair.this for pair in pairs], [pair.other for pair in pairs]
    this, other = (median(run.sum_micros for run in its) for its in runs)
    this_rate, other_rate = (median(run.measured.summary.requests_per_second for run in its) for its in runs)
    this_ms, other_ms = (median(run.measured.summary.percentile_ms(50) for run in its) for its in runs)
    return {
        "case": case.name,
        "connections": case.connections,
        "pairs": len(pairs),
        "disturbed": sum(pair.is_disturbed for pair in pairs),
        "foreign CPU at most": f"{max(pair.foreign_share for pair in pairs):.1%}",
        "sum µs": f"{this:.0f}",
        "other's": f"{other:.0f}",
        "ratio": f"{this / other:.3f}",
        "requests/s": f"{this_rate:.0f}",
        "other's requests/s": f"{other_rate:.0f}",
        "ratio of requests/s": f"{this_rate / other_rate:.3f}",
        "p50 ms": f"{this_ms:.2f}",
        "other's p50 ms": f"{other_ms:.2f}",
        "ratio of p50": f"{this_ms / other_ms:.3f}",
    }


def measure(server: RunningServer, case: Case, *, seconds: float, resting: RunningServer | None = None) -> Run:
    """What came back, and what it cost, while `resting` is up and has nothing to do.

    It is not stopped with SIGSTOP: when a server goes on, all its timers are due at once and all heartbeats are late,
    and it would be measured in a state that no server is in. An idle one only sends heartbeats: what they take is
    measured and stated.
    """
    requests, load = case.requests(server.port), Load(concurrency=case.connections, seconds=seconds)
    drive(server.port, requests, dataclasses.replace(load, seconds=1))
    pid = server.process.pid
    beside = 0 if resting is None else resting.process.pid
    before = cpu_by_title(pid)
    measured = measure_load(pid, server.port, requests, load, gap=case.gap, beside=beside)
    after = cpu_by_title(pid)
    summary = measured.summary
    if not summary.num_requests:
        raise ServerFailed(f"{server.name} answered no request: {summary.failures}")
    micros = {title: (after[title] - before.get(title, 0.0)) / summary.num_texts * 1e6 for title in after}
    return Run(measured, micros)


def measure_pair(servers: Sequence[RunningServer], case: Case, *, seconds: float, is_turned: bool) -> Pair:
    """Both servers in turn; `is_turned`: the other's first."""
    this, other = servers
    turns = [(this, other), (other, this)]
    runs = [
        measure(server, case, seconds=seconds, resting=resting)
        for server, resting in (reversed(turns) if is_turned else turns)
    ]
    return Pair(*(reversed(runs) if is_turned else runs))


def write_rounds(report: Report, server: RunningServer, cases: Sequence[Case], *, rounds: int, seconds: float) -> None:
    """This checkout's server alone."""
    for number in range(rounds):
        for case in cases:
            run = measure(server, case, seconds=seconds)
            report.row({"round": number, "case": case.name, **run.cells()})


def write_pairs(
    report: Report, servers: Sequence[RunningServer], cases: Sequence[Case], *, pairs: int, seconds: float
) -> None:
    """Every measurement that counts, and the comparison."""
    found: dict[Case, list[Pair]] = {case: [] for case in cases}
    report.table("Every measurement")
    for number in range(pairs):
        for case, those in found.items():
            measured = partial(measure_pair, servers, case, seconds=seconds, is_turned=number % 2 == 1)
            those.append(pair := quiet_pair(measured))
            for name, run in ((THIS, pair.this), (OTHER, pair.other)):
                cells = {"pair": number, "case": case.name, "checkout": name, **run.cells()}
                cells["foreign CPU"] = f"{run.measured.foreign_share:.1%}"
                report.row({**cells, "disturbed": "yes" if pair.is_disturbed else ""})
    report.table("This checkout beside the other: medians")
    for case, those in found.items():
        report.row(compare(case, those))
    resting = max(
        run.measured.resting_share for those in found.values() for pair in those for run in (pair.this, pair.other)
    )
    report.note(
        f"Foreign CPU: what neither the servers nor the client took of all cores. A pair with more than "
        f"{MAX_FOREIGN_SHARE:.0%} is measured anew, at most {MAX_TRIES} times in all; what stays above is marked."
    )
    report.note(f"The server that was not asked idled, and took at most {resting:.2%} of all cores.")


def start(stack: contextlib.ExitStack, name: str, root: Path, flags: Sequence[str]) -> RunningServer:
    """A server that has answered."""
    cache = stack.enter_context(tempfile.TemporaryDirectory())
    recipe = dataclasses.replace(embedline(*flags, name=name, root=root), folder=root)
    server = stack.enter_context(running(recipe, cache=Path(cache)))
    server.wait_for_answer(TEXT)
    return server


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="a folder with another version of the source")
    parser.add_argument("--flags", default="", help="of this checkout's server")
    parser.add_argument("--against-flags", default="", metavar="FLAGS", help="of the other checkout's server")
    parser.add_argument("--engine", choices=_FLAGS, default="fake")
    parser.add_argument("--cases", nargs="+", default=[""], metavar="NAME", help="those whose names begin so; all")
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


def _name(arguments: argparse.Namespace) -> str:
    """Of the files of results: other flags and the default model have files of their own."""
    words = ["host-path", "against" if arguments.against else "", *re.findall(r"\w+", arguments.flags)]
    return "-".join(filter(None, [*words, "model" if arguments.engine == "auto" else ""]))


def main() -> None:
    arguments = parse()
    flags = _FLAGS[arguments.engine]
    engine = "fake engine, dimension 1024" if flags else "the default model"
    title = f"CPU time of one text of {len(ids_of(TEXT))} tokens, {engine}"
    cases = [case for case in CASES if case.name.startswith(tuple(arguments.cases))]
    report = Report(_name(arguments), title)
    with contextlib.ExitStack() as stack:
        server = start(stack, THIS, ROOT, [*flags, *shlex.split(arguments.flags)])
        if arguments.against is None:
            write_rounds(report, server, cases, rounds=arguments.rounds, seconds=arguments.seconds)
        else:
            other = arguments.against.resolve()
            servers = [server, start(stack, OTHER, other, [*flags, *shlex.split(arguments.against_flags)])]
            write_pairs(report, servers, cases, pairs=arguments.pairs, seconds=arguments.seconds)
            report.note(f"The other checkout: {described(arguments.against)}. Below 1 this one takes less.")
    report.note(
        f"In 128 texts a request each has {len(ids_of(LONGER)) + 2} tokens. Answers in base64 where none is named."
    )
    report.note("CPU µs a text: user and system time of each process, from /proc, over the texts that were answered.")
    report.note("The client runs on the same machine and is not counted; absolute requests/s are a lower bound.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
