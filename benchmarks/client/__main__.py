"""Clients side by side: ours, AsyncOpenAI, Baseten's and aiohttp, against one stub server and against the real one.

    sh benchmarks/client/make_env.sh .peers/clients
    python -m benchmarks.client --clients .peers/clients [--quick] [--write]

Each run is a process of its own. The stub's answers are prepared, so the client is what is measured; the real server
computes with the fake engine, so a client's share of the machine costs the server its own.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.report import Report
from tests.server_e2e.running import serving

ROOT = Path(__file__).resolve().parents[2]
COUNTS = (8_192, 65_536)
LIMIT = 300.0  # seconds for one run
_SLOW = 20.0  # a run of more seconds is not repeated
NAMES = {
    "ours": "Embedline `Client`",
    "ours_async": "Embedline `AsyncClient`",
    "openai": "AsyncOpenAI (base64)",
    "baseten": "Baseten's (floats)",
    "aiohttp_raw": "aiohttp, raw float32 by hand",
    "aiohttp_base64": "aiohttp, base64 and orjson by hand",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one client and one count: medians, but for the memory."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    checksums: frozenset[int]


class Unfinished(Exception):
    """A client did not get through in time, or failed; one line."""


def run(python: Path, client: str, url: str, count: int) -> dict[str, float]:
    """One run in a process of its own."""
    command = [str(python), "-P", "-m", "benchmarks.client.run", client, url, str(count)]
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    try:
        ended = subprocess.run(
            command,
            env={**plain, "PYTHONPATH": str(ROOT)},
            cwd=tempfile.gettempdir(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise Unfinished(f"not done in {LIMIT:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise Unfinished(f"failed: {error.stderr.strip().splitlines()[-1][:100]}") from None
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def measure(
    python: Path, clients: Sequence[str], url: str, count: int, *, rounds: int
) -> dict[str, Figures | Unfinished]:
    """Of each client. Rounds of all clients, one after the other: what slows the machine for a while slows them all."""
    runs: dict[str, list[dict[str, float]]] = {client: [] for client in clients}
    failed: dict[str, Figures | Unfinished] = {}
    for _ in range(rounds):
        for client in clients:
            if client in failed or any(one["seconds"] >= _SLOW for one in runs[client]):
                continue
            try:
                runs[client].append(run(python, client, url, count))
            except Unfinished as error:
                failed[client] = error
    return {client: failed.get(client) or _figures(runs[client]) for client in clients}


def _figures(runs: Sequence[dict[str, float]]) -> Figures:
    return Figures(
        statistics.median(one["seconds"] for one in runs),
        statistics.median(one["cpu_seconds"] for one in runs),
        max(one["peak_mb"] for one in runs),
        frozenset(int(one["checksum"]) for one in runs),
    )


@contextlib.contextmanager
def stub(*forms: str) -> Iterator[str]:
    """Its address."""
    command = [sys.executable, "-m", "benchmarks.client.stub", *forms]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def compare(report: Report, clients: Sequence[str], url: str, count: int, *, python: Path, rounds: int) -> None:
    """A row for each client; how many times as long as ours it takes."""
    own: Figures | None = None
    for client, found in measure(python, clients, url, count, rounds=rounds).items():
        name = NAMES[client]
        if isinstance(found, Unfinished):
            report.row({"client": name, "embeddings/s": str(found)})
            continue
        own = own or found
        if found.checksums != own.checksums:
            report.note(f"{name} gave other rows than the first client for {count:,} embeddings.")
        report.row(
            {
                "client": name,
                "embeddings/s": f"{count / found.seconds:,.0f}",
                "takes times as long as ours": "" if found is own else f"{found.seconds / own.seconds:.1f}",
                "seconds": f"{found.seconds:.2f}",
                "CPU seconds": f"{found.cpu_seconds:.2f}",
                "peak MB": f"{found.peak_mb:.0f}",
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=Path, required=True, help="the environment that make_env.sh makes")
    parser.add_argument("--quick", action="store_true", help="one round, 8,192 embeddings alone")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    python, rounds = arguments.clients.absolute() / "bin" / "python", 1 if arguments.quick else 5
    counts = COUNTS[:1] if arguments.quick else COUNTS
    report = Report("client", "Clients, 128 texts a request, rows of 1,024 numbers", packages=())

    with stub() as url:
        for count in counts:
            report.table(f"Prepared answers, {count:,} embeddings ({count * 4096 / 1e6:.0f} MB as float32)")
            compare(report, tuple(NAMES), url, count, python=python, rounds=rounds)
    for forms in (("base64", "float"), ("float",)):
        with stub(*forms) as url:
            report.table(f"Prepared answers of a server that has {' and '.join(forms)} alone, {counts[0]:,} embeddings")
            compare(report, ("ours", "openai", "baseten"), url, counts[0], python=python, rounds=rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving("--engine", "fake", "--fake-dim", "1024", folder=Path(folder)) as server,
    ):
        report.table(f"Embedline's server with the fake engine, {counts[0]:,} embeddings")
        compare(report, tuple(NAMES), f"http://127.0.0.1:{server.port}", counts[0], python=python, rounds=rounds)

    versions = subprocess.run(
        [str(python), "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = ("aiohttp==", "baseten", "numpy==", "openai==", "orjson==")
    report.note(f"Versions: {', '.join(line for line in versions if line.startswith(wanted))}.")
    report.note(
        "Seconds until the client has given its answer, medians; rounds are interleaved; peak MB is the highest of all."
    )
    report.note("AsyncOpenAI's and Baseten's answers are lists of numbers; making an array of them is not counted.")
    report.note("The others have 32 requests in flight; ours finds its number by the answers.")
    report.note("Client and server share the machine's cores; rows of all clients were compared by checksum.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
