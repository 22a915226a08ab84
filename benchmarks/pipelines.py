"""What a pipeline costs beside the work of its steps: a hop between two steps of a process, and a run over HTTP.

    python -m benchmarks.pipelines [--quick] [--write]

Hops: steps that return the row that they are given, 1 and 65 of them in a row, and 33 side by side with 32 that merge
two values each; in turn with the same functions awaited one by one. A hop is the difference, divided by the steps.
Runs over HTTP: the fake engine, which computes at once, one connection and 16.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray

from benchmarks.engines.__main__ import MODEL
from benchmarks.measuring.load import drive
from benchmarks.measuring.report import Report, parse
from benchmarks.measuring.servers import embedline, running
from embedline.bench.load import Load, percentile
from embedline.bench.options import parse_url
from embedline.bench.requests import HttpRequest, post
from embedline.pipelines import pipeline, step

MAX_HOP_US = 50.0  # what is asked for
HOPS = 64
_RUNS_A_ROUND = 200
_FILE = """
from embedline import AsyncClient
from embedline.pipelines import pipeline, step

@step
async def back(text: str) -> str:
    return text

@step
async def embed(client: AsyncClient, text: str) -> int:
    return len((await client.embed([text])).embeddings)

@pipeline
def same(text: str) -> str:
    return back(text)

@pipeline
def embedded(text: str) -> int:
    return embed(text)
"""
NOTES = (
    f"Holds: a hop in process costs at most {MAX_HOP_US:.0f} µs beyond the work.",
    "Rows of 384 float32 pass from step to step; nothing is copied. The event loop is uvloop, as in "
    "the pipelines process.",
    "Over HTTP the load generator runs on the same cores. `embedded` is one step that asks the server for one row: its "
    "request goes over HTTP a second time.",
    "Not shown: other machines, arrays of many MB over HTTP, steps on other machines.",
)
Row = NDArray[np.float32]
Run = Callable[[Row], Awaitable[Row]]


@step
async def pass_on(row: Row) -> Row:
    return row


@step(timeout=10.0)
async def pass_on_in_time(row: Row) -> Row:
    return row


@step
async def first(rows: Row, others: Row) -> Row:
    return rows


@pipeline
def one(row: Row) -> Row:
    return pass_on(row)


@pipeline
def chain(row: Row) -> Row:
    for _ in range(HOPS + 1):
        row = pass_on(row)
    return row


@pipeline
def chain_in_time(row: Row) -> Row:
    for _ in range(HOPS + 1):
        row = pass_on_in_time(row)
    return row


@pipeline
def fan(row: Row) -> Row:
    merged = pass_on(row)
    for side in [pass_on(row) for _ in range(HOPS // 2)]:
        merged = first(merged, side)
    return merged


async def plain(row: Row) -> Row:
    """The work alone."""
    for _ in range(HOPS + 1):
        row = await pass_on.function(row)
    return row


async def seconds_of(run: Run, row: Row) -> float:
    """Of one run, on average over a round."""
    began = time.perf_counter()
    for _ in range(_RUNS_A_ROUND):
        await run(row)
    return (time.perf_counter() - began) / _RUNS_A_ROUND


async def hops(report: Report, *, rounds: int) -> None:
    """All shapes in turn; the median of the rounds, and the highest."""
    row = np.zeros(384, np.float32)
    shapes: dict[str, tuple[Run, int]] = {
        "one step": (lambda row: one.run(None, row), 0),
        f"{HOPS + 1} steps in a row": (lambda row: chain.run(None, row), HOPS),
        f"{HOPS + 1} steps in a row, each with a timeout": (lambda row: chain_in_time.run(None, row), HOPS),
        f"{HOPS // 2 + 1} steps side by side, {HOPS // 2} that merge": (lambda row: fan.run(None, row), HOPS),
    }
    taken: dict[str, list[float]] = {name: [] for name in shapes}
    work: list[float] = []
    for _ in range(rounds):
        for name, (run, _) in shapes.items():
            taken[name].append(1e6 * await seconds_of(run, row))
        work.append(1e6 * await seconds_of(plain, row))
    report.row({"shape": f"{HOPS + 1} functions awaited", "run µs": _words(work)})
    for name, (_, num) in shapes.items():
        cells: dict[str, object] = {"shape": name, "run µs": _words(taken[name])}
        if num:
            each = zip(taken[name], taken["one step"], work, strict=True)
            cells["a hop, µs"] = _words([(run - one - work) / num for run, one, work in each])
        report.row(cells)


def _words(values: list[float]) -> str:
    return f"{np.median(values):.1f} (at most {max(values):.1f})"


def over_http(report: Report, *, seconds: float) -> None:
    """The same pipelines of a server, beside its own route."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mine.py")
        file.write_text(_FILE)
        recipe = embedline("--engine", "fake", "--model-id", MODEL, "--request-log", "off", "--pipelines", str(file))
        with running(recipe, cache=Path(folder, "cache")) as server:
            server.wait_for_answer("hello")
            target = parse_url(f"127.0.0.1:{server.port}")
            bodies: dict[str, dict[str, Any]] = {
                "/pipelines/same": {"text": "hello"},
                "/pipelines/embedded": {"text": "hello"},
                "/v1/embeddings": {"input": "hello", "model": "any", "dimensions": 4},
            }
            for path, body in bodies.items():
                requests = [HttpRequest(post(target, path, json.dumps(body).encode()), 1)]
                drive(server.port, requests, Load(concurrency=16, seconds=1.0))  # warm
                for connections in (1, 16):
                    phase = drive(server.port, requests, Load(concurrency=connections, seconds=seconds))
                    ms = sorted(1000 * (one.done - one.sent) for one in phase.samples if not one.failure)
                    report.row(
                        {
                            "route": path,
                            "connections": connections,
                            "a second": f"{len(ms) / seconds:.0f}",
                            "p50 ms": f"{percentile(ms, 50):.2f}",
                            "p99 ms": f"{percentile(ms, 99):.2f}",
                            "others": len(phase.samples) - len(ms),
                        }
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load over HTTP")
    arguments = parse(parser)
    rounds, seconds = (2, 1.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    report = Report("pipelines", "Pipelines: a hop, and a run over HTTP")
    for note in NOTES:
        report.note(note)
    report.table("A hop in process")
    uvloop.run(hops(report, rounds=rounds))
    report.table("Over HTTP")
    over_http(report, seconds=seconds)
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
